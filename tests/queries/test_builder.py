"""Functions of the configuration: which of their keys are recorded, and with what they are called."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import pytest

from spark_ext.errors import ConfigurationError
from spark_ext.model.configuration import ALL, SETTINGS, is_read
from spark_ext.queries.builder import Configured, is_builder, settings_of
from spark_ext.queries.spec import QueryBuild


@pytest.mark.parametrize(
    ("look", "read"),
    [
        (lambda config: config["a"], {"a"}), (lambda config: config.get("b"), {"b"}),
        (lambda config: "c" in config, {"c"}), (lambda config: [config["a"], config.get("b", 7)], {"a", "b"}),
        (dict, {ALL, "a"}), (len, {ALL}), (lambda config: list(config.items()), {ALL, "a"}), (repr, {ALL}),
        (lambda config: None, set()),
    ],
)  # fmt: skip
def test_what_is_looked_at_is_recorded(look: Callable[[Mapping[str, Any]], Any], read: set[str]) -> None:
    config = Configured({"a": 1})
    look(config)
    assert config.read == read


def test_a_key_that_is_missing_is_recorded_and_values_are_copies() -> None:
    config = Configured({"list": [1]})
    with pytest.raises(KeyError):
        config["gone"]
    config["list"].append(2)
    assert config["list"] == [1]
    assert config.read == {"gone", "list"}
    assert not hasattr(config, "__setitem__")


def unbuilt(values: Mapping[str, Any], sequence: int) -> NoReturn:
    raise AssertionError


def test_only_keys_that_were_read_make_a_difference() -> None:
    built = QueryBuild("q", unbuilt, {"a": 1, "b": 1}, frozenset({"a", "gone"}))
    assert not built.differs({"a": 1, "b": 2})
    assert built.differs({"a": 2})
    assert built.differs({})
    assert built.differs({"a": 1, "gone": None})
    assert built.differs({"a": 1, f"{SETTINGS}x": 1})
    assert QueryBuild("q", unbuilt, {}, frozenset({ALL})).differs({"c": 1})
    assert [is_read(built.keys, key) for key in ("a", "b", "spark.sql.x", "spark.x")] == [True, False, True, False]
    assert not is_read((), "spark.sql.x")


def test_a_function_of_the_configuration_needs_one_argument() -> None:
    def two(first: int, second: int) -> None: ...

    assert is_builder(lambda config: config, "q")
    assert is_builder(functools.partial(two, 1), "q")
    assert is_builder(lambda config, extra=1: config, "q")
    assert not is_builder(lambda: None, "q")
    assert not is_builder(lambda uid="u": uid, "q")
    assert not is_builder(lambda *given: given, "q")
    with pytest.raises(ConfigurationError, match="needs 2 arguments: first, second"):
        is_builder(two, "q")


def test_settings_are_given_to_spark_as_text() -> None:
    given = {"spark.sql.a": True, "spark.sql.b": 1.5, "spark.sql.c": "x", "spark.a": 1, "a": 1}
    assert settings_of(given, "q") == {"spark.sql.a": "true", "spark.sql.b": "1.5", "spark.sql.c": "x"}
    with pytest.raises(ConfigurationError, match=r"'spark\.sql\.a' is \['x'\]"):
        settings_of({"spark.sql.a": ["x"]}, "q")
