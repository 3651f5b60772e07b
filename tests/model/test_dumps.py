"""Which incidents have a dump, which dumps are kept, and what is in one."""

from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import given

from spark_ext.failures.evidence import Frame, Owner
from spark_ext.model.dumps import CUT, LONGEST, KeptDump, Section, document, excess, is_dumped, seen, stacks
from spark_ext.model.stacks import Thread
from tests.incidents.made import incident

kept = st.lists(
    st.builds(KeptDump, st.uuids().map(str), st.integers(0, 9).map(float), st.integers(0, 100)),
    max_size=12,
    unique_by=lambda one: one.name,
)


@pytest.mark.parametrize(
    ("type_", "labels", "dumped"),
    [
        ("stall", {"type": "USER_CODE"}, True), ("failure", {"type": "RESOURCE"}, True),
        ("failure", {"type": "NETWORK"}, False), ("failure", {}, False), ("scheduling", {"type": "RESOURCE"}, False),
        ("stop_blocked", {"type": "SINK"}, False),
    ],
)  # fmt: skip
def test_stalls_and_a_lack_of_resources_are_dumped(type_: str, labels: dict[str, str], dumped: bool) -> None:
    assert is_dumped(replace(incident("a"), type=type_, labels=labels)) is dumped


@given(kept, st.integers(-1, 5), st.integers(-50, 400))
def test_what_stays_has_room_and_is_newer_than_what_goes(there: list[KeptDump], most: int, size: int) -> None:
    gone = excess(there, most, size)
    stays = [one for one in there if one.name not in gone]
    assert len(stays) <= max(0, most) and (not stays or sum(one.size for one in stays) <= size)
    oldest = sorted(there, key=lambda one: (one.at, one.name))
    assert [one.name for one in oldest[: len(gone)]] == list(gone)
    if gone:
        # Not one more than has to go.
        before = [*stays, oldest[len(gone) - 1]]
        assert len(before) > most or sum(one.size for one in before) > size


def test_a_text_that_is_too_long_is_cut_in_each_part_that_is() -> None:
    long = Section("driver's JVM", "x" * 2 * LONGEST)
    text = document("why", [long, Section("executor 1", "short"), long])
    assert len(text) <= LONGEST
    assert text.startswith("why\n\n== driver's JVM ==\n\nxxx") and "== executor 1 ==\n\nshort\n" in text
    assert text.count(CUT) == 2 and text.endswith(CUT)


def test_stacks_and_what_an_incident_has_seen_are_texts() -> None:
    (section,) = seen({"since": "now", "stacks": {"Main": ["a.py, line 1, in f", "b.py, line 2, in g"], "idle": []}})
    assert section.text == '"Main"\n    at a.py, line 1, in f\n    at b.py, line 2, in g\n\n"idle"'
    without: list[object] = [None, {}, {"stacks": {}}, {"stack": "text"}, "text"]
    for nothing in without:
        assert seen(nothing) == ()
    frames = (Frame(Owner.USER, "shop.py", 41, "price"), Frame(Owner.STANDARD, "threading.py", 0, "run"))
    assert stacks([Thread("Main", frames), Thread("idle")]) == (
        '"Main"\n    at shop.py, line 41, in price\n    at threading.py, in run\n\n"idle"\n'
    )
