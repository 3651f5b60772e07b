"""Plugins of the classifier: what each may do, and that none hurts another one."""

import threading
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import pytest

from spark_ext import failures
from spark_ext.errors import ConfigurationError
from spark_ext.failures.classifier import Classifier, Failure, Plugin, load
from spark_ext.failures.evidence import Evidence, Raised

FAILED = Evidence((Raised("builtins.ValueError", "no such city"),))


def of(name: str, *keys: str, labels: Mapping[str, str] | None = None, problem: Exception | None = None) -> Plugin:
    def function(failure: Failure) -> Mapping[str, str]:
        if problem is not None:
            raise problem
        return labels if labels is not None else dict.fromkeys(keys, name)

    return Plugin(name, frozenset(keys), function)


def test_l1_each_plugin_adds_its_labels() -> None:
    found = Classifier(None, [of("a", "team", "tier"), of("b", "city")]).classify(FAILED)
    assert found.labels == {"type": "SYSTEM", "origin": "spark", "team": "a", "tier": "a", "city": "b"}


@pytest.mark.parametrize(
    ("plugin", "labels", "says"),
    [
        (of("a", "team", problem=KeyError("x")), {}, "'a' failed: KeyError: 'x'"),
        (of("a", "team", labels="team"), {}, "it returned str"),  # type: ignore[arg-type]
        (
            of("a", "team", labels={"team": "x", "type": "FENCED", "city": "y"}),
            {"team": "x"},
            "not declared, which are ignored: city, type",
        ),
    ],
    ids=["raises", "returns no mapping", "sets others"],
)
def test_l1_one_that_is_wrong_hurts_no_other(
    plugin: Plugin, labels: dict[str, str], says: str, caplog: pytest.LogCaptureFixture
) -> None:
    found = Classifier(None, [plugin, of("b", "zone")]).classify(FAILED)
    assert found.labels == {"type": "SYSTEM", "origin": "spark", "zone": "b", **labels}
    assert says in caplog.text


def test_l1_one_that_hangs_is_not_called_again(caplog: pytest.LogCaptureFixture) -> None:
    released, calls = threading.Event(), []

    def hangs(failure: Failure) -> Mapping[str, str]:
        calls.append(failure)
        released.wait()
        return {}

    classifier = Classifier(None, [Plugin("slow", frozenset({"team"}), hangs, timeout=0.05), of("b", "city")])
    first, second = classifier.classify(FAILED), classifier.classify(FAILED)
    released.set()
    assert first.labels == second.labels == {"type": "SYSTEM", "origin": "spark", "city": "b"}
    assert len(calls) == 1
    assert "'slow' has not returned within 0.05 s" in caplog.text


@pytest.mark.parametrize("plugins", [[of("a", "team"), of("b", "team")], [of("a", "type")]])
def test_l1_a_clash_is_refused_at_the_start(plugins: list[Plugin]) -> None:
    with pytest.raises(ConfigurationError, match="declares the label"):
        Classifier(None, plugins)


@failures.plugin("team")
def team(failure: Failure) -> Mapping[str, str]:
    return {"team": f"{failure.job}/{failure.query}/{failure.epoch}"}


def test_a_file_of_rules_names_plugins(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(f"plugins: [{{use: '{__name__}:team', timeout: 5 s}}]")
    assert load(str(file)).classify(FAILED, job="j", query="q", epoch=7).labels["team"] == "j/q/7"


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("no_such_module:f", "cannot be imported: ModuleNotFoundError"),
        (f"{__name__}:absent", "cannot be imported: AttributeError"),
        (f"{__name__}:of", "is not declared with"),
    ],
)
def test_one_that_cannot_be_had_is_refused_at_the_start(tmp_path: Path, place: str, says: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(f"plugins: [{{use: '{place}'}}]")
    with pytest.raises(ConfigurationError, match=says):
        load(str(file))


def test_exported_names() -> None:
    assert isinstance(failures, ModuleType)
    assert all(getattr(failures, name) is not None for name in failures.__all__)
