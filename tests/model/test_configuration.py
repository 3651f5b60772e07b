"""The configuration as a fold of events, and stamps."""

import json
from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from spark_ext.errors import OffsetError
from spark_ext.model.configuration import Configuration, Stamp, concerns, name_of
from spark_ext.model.control import JOB, Delivery, Event, Target, channel, query, source
from spark_ext.model.control_kinds import kinds

TARGETS = [JOB, query("q"), query("p"), source("s"), source("t"), channel("s", "c/1"), Target.parse("sink:k")]

KINDS = [
    *("set_config", "unset", "rate_limit", "lift", "pause", "resume", "sample", "trigger_interval", "log_level"),
    *("broadcast", "seek", "drain", "release", "checkpoint_config", "a plugin that is not installed"),
]

few = settings(max_examples=50, deadline=None)

targets = st.sampled_from(TARGETS)
keys = st.sampled_from(["k", "l", ""])
json_values = st.sampled_from([None, True, 0, -1.5, "ä", [], [1, {"a": None}], {"deep": {"er": [2]}}])
deliveries = st.sampled_from(Delivery)


@st.composite
def contents(draw: st.DrawFn, upto: int) -> tuple[str, Any, Delivery]:
    kind = draw(st.sampled_from(KINDS))
    delivery = draw(deliveries)
    if kind == "set_config":
        return kind, {"key": draw(keys), "value": draw(json_values)}, delivery
    if kind == "unset":
        return "set_config", {"key": draw(keys), "unset": True}, delivery
    if kind == "lift":
        return draw(st.sampled_from(["rate_limit", "sample", "trigger_interval"])), None, delivery
    values = {
        "rate_limit": {"rows_per_second": draw(st.integers(1, 9))}, "sample": {"fraction": 0.5},
        "trigger_interval": {"interval": draw(st.integers(0, 9))}, "log_level": {"level": "INFO", "logger": draw(keys)},
        "broadcast": {"type": "t", "value": draw(json_values)}, "seek": {"position": 3, "yes": True},
        "release": {"sequence": draw(st.integers(1, max(1, upto))), "checkpoint": 1},
        "checkpoint_config": {"checkpoint_interval": 7},
    }  # fmt: skip
    return kind, values.get(kind), delivery if kind not in ("release", "seek", "broadcast") else Delivery.IMMEDIATE


@st.composite
def events(draw: st.DrawFn) -> list[Event]:
    found, sequence = [], 0
    for _ in range(draw(st.integers(0, 8))):
        sequence += draw(st.integers(1, 3))
        kind, value, delivery = draw(contents(sequence))
        found.append(Event(sequence, f"e{sequence}", kind, draw(targets), value, delivery))
    return found


def fold(given: list[Event]) -> Configuration:
    return Configuration().after(given)


def said(*given: tuple[str, Target, Any]) -> Configuration:
    """What events of these kinds, targets and values make, in this order."""
    return fold([Event(number, f"e{number}", *one) for number, one in enumerate(given, 1)])


@few
@given(events(), st.data())
def test_it_does_not_matter_where_the_events_are_divided(given: list[Event], data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(given)), max_size=3)))
    found = Configuration()
    for low, high in zip([0, *cuts], [*cuts, len(given)], strict=True):
        found = found.after(given[low:high])
    assert found == fold(given)


@few
@given(events(), st.integers(0, 8))
def test_events_that_are_given_again_change_nothing(given: list[Event], upto: int) -> None:
    whole = fold(given)
    assert whole.after(given) == whole
    assert whole.after(given[:upto]) == whole
    assert fold(given[:upto]).after(given) == whole


@few
@given(events())
def test_a_fold_leaves_what_it_began_with_as_it_was(given: list[Event]) -> None:
    half = fold(given[: len(given) // 2])
    text = json.dumps(half.to_json())
    half.after(given)
    assert json.dumps(half.to_json()) == text


@few
@given(events())
def test_it_survives_json_and_a_stamp(given: list[Event]) -> None:
    found = fold(given)
    assert Configuration.from_json(json.loads(json.dumps(found.to_json()))) == found
    stamp = Stamp(found, 3, ({"sequence": 4, "type": "t"},), {"e4": {"status": "applied"}})
    again = Stamp.parse(stamp.text(), "here")
    assert (again, again.name) == (stamp, stamp.name) == (stamp, name_of(stamp.text()))


@few
@given(events())
def test_the_last_one_of_a_slot_wins(given: list[Event]) -> None:
    """Compared with a table of what was said last, for events that wait for nothing."""
    immediate = [event for event in given if event.delivery is Delivery.IMMEDIATE and event.kind != "release"]
    found = fold(immediate)
    last: dict[tuple[str, Target, str], Any] = {}
    for event in immediate:
        value = event.value or {}
        if event.kind == "resume":
            last.pop(("pause", event.target, ""), None)
        elif event.kind in kinds() and kinds()[event.kind].standing:
            place = (event.kind, event.target, value.get("key", value.get("logger", "")))
            if value.get("unset") or (event.value is None and event.kind != "pause"):
                last.pop(place, None)
            else:
                last[place] = event.value
    stored = {
        (kind, Target.parse(target), slot): value
        for kind, by_target in found.standing.items()
        for target, slots in by_target.items()
        for slot, value in slots.items()
    }
    assert stored == last
    for (kind, target, slot), value in last.items():
        assert found.of(kind, target, slot) == value and found.has(kind, target, slot)


def test_nothing_is_left_of_what_was_lifted() -> None:
    limit = ("rate_limit", source("s"), {"rows_per_second": 1}), ("rate_limit", source("s"), None)
    key = ("set_config", JOB, {"key": "k", "value": 1}), ("set_config", JOB, {"key": "k", "unset": True})
    assert said(*limit, *key, ("pause", JOB, None), ("resume", JOB, None)) == Configuration(6)


def test_a_key_of_the_query_hides_that_of_the_job() -> None:
    found = said(
        ("set_config", JOB, {"key": "k", "value": 1}),
        ("set_config", JOB, {"key": "l", "value": 1}),
        ("set_config", query("q"), {"key": "k", "value": None}),
    )
    assert found.user("q") == {"k": None, "l": 1}
    assert found.user("p") == found.user() == {"k": 1, "l": 1}


def test_an_aligned_event_waits_for_its_release() -> None:
    aligned = Event(1, "a", "set_config", JOB, {"key": "k", "value": 1}, Delivery.ALIGNED)
    later = Event(2, "b", "set_config", JOB, {"key": "k", "value": 2})
    release = Event(3, "c", "release", JOB, {"sequence": 1, "checkpoint": 9})
    held = fold([aligned, later])
    assert held.user() == {"k": 2} and list(held.aligned) == ["1"]
    assert held.after([release]).user() == {"k": 1}
    assert held.after([release]).aligned == {}
    assert held.after([release, Event(4, "d", "release", JOB, {"sequence": 1, "checkpoint": 9})]).user() == {"k": 1}


@pytest.mark.parametrize(
    ("kind", "target", "mine"),
    [
        ("set_config", JOB, True), ("set_config", query("q"), True), ("set_config", query("p"), False),
        ("pause", source("s"), True), ("pause", channel("s", "x"), True), ("pause", source("t"), False),
        ("pause", channel("t", "x"), False), ("pause", Target.parse("sink:s"), False), ("pause", source("q"), False),
        ("checkpoint", JOB, False), ("log_level", JOB, True), ("drain", JOB, True), ("no such kind", JOB, False),
    ],
)  # fmt: skip
def test_whom_an_event_concerns(kind: str, target: Target, mine: bool) -> None:
    assert concerns(Event(1, "a", kind, target), "q", "s") is mine


@pytest.mark.parametrize("version", [None, 0, 2])
def test_a_stamp_of_another_version_is_refused(version: object) -> None:
    raw = {**json.loads(Stamp(Configuration()).text()), "version": version}
    with pytest.raises(OffsetError, match="this release reads version 1"):
        Stamp.parse(json.dumps(raw), "here")


@few
@given(events(), events())
def test_what_stands_for_a_renamed_query_follows_it(before: list[Event], after: list[Event]) -> None:
    """As if it had always been addressed to the new uid; another query may take the old one."""
    addressed = [one for one in before if one.target != query("p")]
    value = {"old": "q", "new": "p", "lineage": 2}
    end = addressed[-1].sequence if addressed else 0
    rename = Event(end + 1, "r", "renamed", JOB, value)
    later = [replace(one, sequence=one.sequence + end + 1) for one in after]
    as_if = [replace(one, target=query("p")) if one.target == query("q") else one for one in addressed]
    expected = replace(fold([*as_if, *later]), renames=2, sequence=fold([*addressed, rename, *later]).sequence)
    found = fold([*addressed, rename, *later])
    assert found == expected
    twice = Event(found.sequence + 1, "s", "renamed", JOB, value)
    assert replace(found.after([twice]), sequence=found.sequence) == found


def test_a_stamp_is_seen_under_the_present_uid() -> None:
    found = fold([Event(1, "e", "set_config", query("q"), {"key": "k", "value": 1})])
    stamp = Stamp.parse(Stamp(found, query="q").text(), "here")
    assert stamp.seen_by("p").user("p") == {"k": 1} and stamp.seen_by("p").user("q") == {}
    assert stamp.seen_by("q") == stamp.seen_by("") == found
