"""Targets as they are written, and values: whatever comes in, it is stored in one form or refused with a reason."""

import json
import re
import warnings
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import example, given, settings

from spark_ext.model import control_kinds, json_schemas
from spark_ext.model.control import JOB, MAX_VALUE_BYTES, Scope, Target, channel, query, source
from spark_ext.model.control_kinds import BadValue, Kind, Where, checked, kinds, register
from spark_ext.options import UID

uids = st.from_regex(UID, fullmatch=True).map(lambda text: text[:30]).filter(lambda text: bool(UID.fullmatch(text)))
channels = st.text(min_size=1, max_size=8)
targets = st.one_of(
    st.just(JOB),
    st.builds(Target, st.sampled_from([Scope.QUERY, Scope.SOURCE, Scope.SINK]), uids),
    st.builds(channel, uids, channels),
)

odd = st.sampled_from(["10 s", "-1", "1e400", "\ud800", "\x00", "INFO", "9" * 400])
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=6) | odd
members = st.sampled_from(
    sorted({name for kind in kinds().values() if kind.value_type for name in kind.value_type.model_fields} | {"schema"})
)
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(members | st.text(max_size=3), inner, max_size=4),
    max_leaves=8,
)


@given(targets)
def test_a_target_is_read_as_it_is_written(target: Target) -> None:
    assert Target.parse(str(target)) == target


@given(st.text() | st.from_regex(re.compile(r"(job|query|source|sink|channel)?:?[a-z/:~]*"), fullmatch=True))
@example("source:a/")
@example("query:a/b")
@example("job:")
@example("source:a\n")
def test_a_text_is_a_target_or_refused_with_its_forms(text: str) -> None:
    try:
        found = Target.parse(text)
    except ValueError as refused:
        assert "is not a target" in str(refused)
    else:
        assert str(found) == text


def test_a_channel_may_have_any_name_and_kinds_may_share_uids() -> None:
    assert Target.parse("source:s/a/b: c/") == channel("s", "a/b: c/")
    assert len({str(one) for one in (query("x"), source("x"), Target(Scope.SINK, "x"), channel("x", "x"))}) == 4


def _target(kind: Kind) -> Target:
    return JOB if Scope.JOB in kind.scopes else channel("s", "c") if Scope.CHANNEL in kind.scopes else source("s")


@given(st.sampled_from(sorted(kinds())), targets, anything)
@settings(deadline=None)
def test_any_json_is_stored_in_one_form_or_refused(name: str, target: Target, value: Any) -> None:
    kind = kinds()[name]
    try:
        stored = checked(kind, target, value)
    except BadValue as refused:
        assert str(refused)
        return
    assert target.scope in kind.scopes
    assert json.loads(json.dumps(stored, allow_nan=False)) == stored
    assert checked(kind, target, stored) == stored, "what is stored is what would be stored again"


@given(st.sampled_from([kind for kind in kinds().values() if kind.value_type]), anything)
@settings(deadline=None)
def test_members_of_any_value_are_stored_in_one_form_or_refused(kind: Kind, value: Any) -> None:
    assert kind.value_type is not None
    target = _target(kind)
    for field in kind.value_type.model_fields.values():
        for name in (field.alias or "", *kind.value_type.model_fields):
            given = {**(kind.example if isinstance(kind.example, dict) else {}), name: value}
            try:
                stored = checked(kind, target, given)
            except BadValue:
                continue
            assert checked(kind, target, stored) == stored


def test_examples_are_taken_and_durations_become_milliseconds() -> None:
    for kind in kinds().values():
        if kind.public and kind.value_type is not None:
            assert checked(kind, _target(kind), kind.example), kind.name
    assert checked(kinds()["trigger_interval"], JOB, {"interval": "10 s"}) == {"interval": 10_000}


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("rate_limit", {"rows_per_second": 0}, "a rate of 0 is no limit; use pause"),
        ("rate_limit", {"rows_per_second": -1}, "greater than 0"),
        ("rate_limit", {"rows_per_second": float("nan")}, "not JSON"),
        ("rate_limit", {"rows_per_second": "5"}, "rows_per_second"),
        ("rate_limit", {"rows_per_second": True}, "rows_per_second"),
        ("rate_limit", {"rows_per_minute": 5}, "rows_per_minute"),
        ("rate_limit", {"rows_per_epoch": 1.5}, "rows_per_epoch"), ("rate_limit", {}, "give rows_per_second"),
        ("rate_limit", {"rows_per_second": 5, "older_than": "5 parsecs"}, "older_than"),
        ("rate_limit", 5, "dictionary"), ("sample", {"fraction": 1.01}, "less than or equal to 1"),
        ("sample", {"fraction": 0}, "use pause"), ("pause", {"why": "x"}, "pause takes no value"),
        ("set_config", {"key": "k", "value": "x" * MAX_VALUE_BYTES}, "the limit is 65536"),
        ("set_config", {"key": ""}, "key"), ("seek", {"position": 3}, "confirm it"),
        ("seek", {"position": 3, "yes": 1}, "yes"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(name: str, value: Any, says: str) -> None:
    with pytest.raises(BadValue, match=re.escape(says)):
        checked(kinds()[name], _target(kinds()[name]), value)


def test_a_kind_is_not_addressed_to_what_cannot_obey_it() -> None:
    with pytest.raises(BadValue, match="checkpoint may be addressed to: job; not to a source"):
        checked(kinds()["checkpoint"], source("s"), None)


def nested(depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for _ in range(depth):
        found = {"not": found}
    return found


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"$ref": "http://127.0.0.1:1/x"}, "does not refer to a part of the schema itself"),
        ({"properties": {"a": {"$ref": "file:///etc/passwd"}}}, "does not refer to a part"),
        ({"$dynamicRef": "http://127.0.0.1:1/x"}, "does not refer to a part"),
        ({"$ref": "#/$defs/nowhere"}, "does not refer to a part"),
        ({"$ref": "#"}, "refers to itself without end"),
        (nested(500), "nested too deeply"),
        ({"type": "no type"}, "is not valid under any of the given schemas"),
        ({"pattern": "["}, "is not a 'regex'"),
    ],
)
def test_a_schema_that_looks_elsewhere_or_never_ends_is_refused(schema: Any, says: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(BadValue, match="it is not a JSON Schema") as caught:
            checked(kinds()["config_schema"], JOB, {"key": "k", "schema": schema})
    assert says in str(caught.value)


def test_references_inside_a_schema_are_followed() -> None:
    items = {"anyOf": [{"$ref": "#/$defs/n"}, {"$ref": "#"}]}
    tree = {"$defs": {"n": {"type": "integer"}}, "type": "array", "items": items}
    assert checked(kinds()["config_schema"], JOB, {"key": "k", "schema": tree})["schema"] == tree
    assert json_schemas.problem_of(tree, [1, [2, [3]]]) is None
    assert "is not valid" in str(json_schemas.problem_of(tree, [1, ["x"]]))
    deep: Any = []
    for _ in range(500):
        deep = [deep]
    assert "nested too deeply" in str(json_schemas.problem_of(tree, deep))


def test_a_kind_is_registered_once_under_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_kinds, "_known", dict(kinds()))
    mine = Kind("flush", "Flushes.", frozenset({Scope.JOB}), Where.DRIVER)
    for _ in range(2):
        register(mine)
    assert kinds()["flush"] is mine
    for name in ("flush", "pause"):
        with pytest.raises(ValueError, match="already"):
            register(Kind(name, "Another.", frozenset({Scope.JOB}), Where.DRIVER))
