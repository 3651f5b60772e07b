"""Which entry may follow which: each epoch once, by the newest start alone, in an exchange that is the one claimed."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from spark_ext.errors import ConfigurationError, FencedError, StateError
from spark_ext.exchange import decisions
from spark_ext.exchange.entries import VERSION, Cut, Entry, EntryKind, LogState, Run, Segment
from spark_ext.model.commits import Claim, Epoch, FenceMark

GOLDEN = Path(__file__).parents[1] / "golden" / "exchange"

ENTRIES = {
    "claim": Entry(EntryKind.CLAIM, 1700000000000, lineage=4, incarnation=3, start=77, job_id="j1", after=-1),
    "epoch": Entry(
        EntryKind.EPOCH,
        1700000000001,
        application="spark_ext:flights:2:q1",
        lineage=2,
        epoch=9,
        rows=(5, 0, 2),
        segments=(
            Segment("i3-e9-p0-a7-00c0ffee.arrow", 4096, (Run(0, 0, 1, 5), Run(2, 1, 2, 1))),
            Segment("i3-e9-p1-a8-00c0ffee.arrow", 512, (Run(2, 0, 1, 1),)),
        ),
        barrier=6,
        total=1007,
        incarnation=3,
    ),
    "seal": Entry(EntryKind.SEAL, 5, application="spark_ext:flights:2:q1", lineage=2, epoch=9, total=7, incarnation=3),
    "cut": Entry(EntryKind.CUT, 5, lineage=3, after=41, total=900, incarnation=4),
    "release": Entry(EntryKind.RELEASE, 5, below=40, total=850, incarnation=4),
    "register": Entry(EntryKind.REGISTER, 5, consumer="daily-in", query="daily"),
    "forget": Entry(EntryKind.FORGET, 5, consumer="daily-in"),
}
STATE = LogState(
    last=60, incarnation=3, start=77, job_id="j1", epochs={"spark_ext:flights:2:q1": 9, "spark_ext:flights:1:q1": 30},
    total=1007, sealed=59, sealed_by="spark_ext:flights:2:q1", lineage=2, cuts=(Cut(-1, 12), Cut(20, 33)), released=40,
    released_rows=850, consumers={"daily-in": "daily", "late": ""},
)  # fmt: skip


def segments(*rows: int) -> list[Segment]:
    return [Segment("s", 10, tuple(Run(number, number, 1, count) for number, count in enumerate(rows) if count))]


def claim(incarnation: int, lineage: int = 1, start: int | None = None, job: str = "j", **more: object) -> Claim:
    drawn = 100 + incarnation if start is None else start
    return Claim("s", "job", job, incarnation, lineage, start=drawn, **more)  # type: ignore[arg-type]


def epoch(number: int, incarnation: int, lineage: int = 1, start: int | None = None, **more: object) -> Epoch:
    drawn = 100 + incarnation if start is None else start
    return Epoch("s", lineage, "q", number, incarnation, start=drawn, **more)  # type: ignore[arg-type]


def claimed(state: LogState, by: Claim) -> LogState:
    entry = decisions.claim_entry(state, by, "e", 0)
    return state if entry is None else state.after(entry)


def committed(state: LogState, by: Epoch, *rows: int) -> LogState:
    entry = decisions.epoch_entry(state, by, segments(*rows), 2, "e", 0)
    return state if entry is None else state.after(entry)


def writes_of(state: LogState, incarnation: int, start: int, lineage: int) -> list[Callable[[], object]]:
    mark, first = FenceMark(incarnation, start), epoch(0, incarnation, lineage, start)
    return [
        lambda: decisions.claim_entry(state, claim(incarnation, lineage, start), "e", 0),
        lambda: decisions.epoch_entry(state, first, [], 2, "e", 0),
        lambda: decisions.seal_entry(state, first, "e", 0),
        lambda: decisions.release_entry(state, 0, 0, mark, "e", 0),
        lambda: decisions.adopt_entry(state, mark, "j", "e", 0),
    ]


def test_entries_and_state_match_their_golden_files() -> None:
    """A change of the written form needs a new version, and golden files of its own."""
    stored = json.loads((GOLDEN / "entries-v1.json").read_text(encoding="utf-8"))
    assert VERSION == 1 and stored.keys() == ENTRIES.keys() == {kind.value for kind in EntryKind}
    for kind, entry in ENTRIES.items():
        assert json.loads(entry.to_json()) == stored[kind] and "\n" not in entry.to_json()
        assert Entry.from_json(json.dumps(stored[kind]), "e") == entry
    state = (GOLDEN / "state-v1.json").read_text(encoding="utf-8")
    assert json.loads(STATE.to_json()) == json.loads(state) and LogState.from_json(state, "e") == STATE


@pytest.mark.parametrize("text", ["", "{", "[]", "7", "null", '{"kind":"claim"}', '{"version":1}'])
def test_what_is_not_an_entry_or_a_state_is_refused_by_name(text: str) -> None:
    with pytest.raises(StateError, match="empty or truncated") as caught:
        Entry.from_json(text, "exchange 'e', entry 4")
    assert caught.value.operator == "exchange 'e', entry 4"
    if text != '{"version":1}':
        with pytest.raises(StateError, match="empty or damaged"):
            LogState.from_json(text, "exchange 'e', state 4")


def test_a_newer_version_is_refused() -> None:
    for kind, version in (("claim", 2), ("unheard", 1)):
        with pytest.raises(StateError, match="is not known"):
            Entry.from_json(json.dumps({"version": version, "kind": kind}), "e")
    with pytest.raises(StateError, match="version 2 is not known"):
        LogState.from_json(STATE.to_json().replace('"version":1', '"version":2'), "e")


@given(st.integers(0, 40))
def test_a_truncated_state_is_never_read(cut: int) -> None:
    text = STATE.to_json()
    with pytest.raises(StateError, match="damaged"):
        LogState.from_json(text[: len(text) * cut // 41], "e")


@given(st.data())
@settings(max_examples=3 * settings().max_examples // 2, deadline=None)
def test_each_epoch_is_there_once_written_by_the_newest_start(data: st.DataObject) -> None:
    """Starts, copies of a state with the same number, resets, stale writers, and epochs that are repeated."""
    state, entries = LogState(), list[Entry]()
    starts: list[tuple[int, int, int]] = []
    current: tuple[int, int, int] | None = None
    visible: list[tuple[int, int]] = []
    numbers: dict[int, int] = {}

    def take(entry: Entry | None) -> None:
        nonlocal state
        if entry is not None:
            entries.append(entry)
            state = state.after(entry)

    for _ in range(data.draw(st.integers(1, 25))):
        step = data.draw(st.sampled_from(["start", "copy", "reset", *["epoch"] * 3, "stale", "seal", "adopt"]))
        if step in ("start", "reset") or current is None:
            lineage = (starts[-1][2] if starts else 1) + (step == "reset")
            current = (len(starts) + 1, data.draw(st.integers(1, 10**6)), lineage)
            starts.append(current)
            before = state
            take(decisions.claim_entry(state, claim(current[0], lineage, current[1]), "e", 0))
            if lineage > before.lineage and (before.total or before.sealed is not None):
                visible = []
                assert (state.total, state.sealed, state.passes_over(0)) == (0, None, state.last + 1)
        elif step == "copy":
            with pytest.raises(FencedError, match="started twice"):
                decisions.claim_entry(state, claim(current[0], current[2], current[1] + 1), "e", 0)
            with pytest.raises(FencedError, match="started twice"):
                decisions.epoch_entry(state, epoch(99, current[0], current[2], current[1] + 1), [], 2, "e", 0)
        elif step == "stale" and len(starts) > 1:
            old = data.draw(st.sampled_from(starts[:-1]))
            for late in writes_of(state, *old):
                with pytest.raises(FencedError, match=f"incarnation {current[0]}"):
                    late()
        elif step == "epoch":
            last = numbers.get(current[2], -1)
            number = data.draw(st.integers(max(0, last - 1), last + 1))
            found = decisions.epoch_entry
            identity = epoch(number, current[0], current[2], current[1])
            if number > last and state.sealed is not None:
                with pytest.raises(StateError, match="is sealed"):
                    found(state, identity, segments(1, 2), 2, "e", 0)
                continue
            entry = found(state, identity, segments(1, 2), 2, "e", 0)
            assert (entry is None) is (number <= last)
            if entry is not None:
                numbers[current[2]] = number
                visible.append((current[2], number))
            take(entry)
            assert found(state, identity, segments(1, 2), 2, "e", 0) is None
        elif step == "seal":
            take(decisions.seal_entry(state, epoch(0, *current[:1], current[2], current[1]), "e", 0))
            assert state.sealed is not None
            assert decisions.seal_entry(state, epoch(0, *current[:1], current[2], current[1]), "e", 0) is None
        elif step == "adopt":
            assert decisions.adopt_entry(state, FenceMark(*current[:2]), "j", "e", 0) is None
        assert state.mark == FenceMark(*current[:2])
    seen = [
        (entry.lineage, entry.epoch)
        for number, entry in enumerate(entries)
        if entry.kind is EntryKind.EPOCH and state.passes_over(number) is None
    ]
    assert seen == visible and len(set(seen)) == len(seen)
    assert state.total == 3 * len(seen)
    folded = LogState()
    for entry in entries:
        assert Entry.from_json(entry.to_json(), "e") == entry
        folded = folded.after(entry)
        assert LogState.from_json(folded.to_json(), "e") == folded
    assert folded == state


def test_another_jobs_exchange_is_neither_claimed_nor_adopted() -> None:
    state = claimed(LogState(), claim(1, job="theirs"))
    for taking in (
        lambda: decisions.claim_entry(state, claim(2, job="ours"), "e", 0),
        lambda: decisions.adopt_entry(state, FenceMark(2, 5), "ours", "e", 0),
    ):
        with pytest.raises(ConfigurationError, match="belongs to another job"):
            taking()
    adopted = decisions.adopt_entry(state, FenceMark(2, 5), "theirs", "e", 0)
    assert adopted is not None and state.after(adopted).mark == FenceMark(2, 5)


def test_a_target_that_is_behind_or_ahead_is_refused() -> None:
    state = committed(claimed(LogState(), claim(1)), epoch(0, 1), 1)
    with pytest.raises(StateError, match="is ahead of this state"):
        decisions.claim_entry(state, claim(2, query_id="q", planned=-1), "e", 0)
    late: list[Callable[[], object]] = [
        lambda: decisions.claim_entry(state, claim(2, query_id="q", previous=3), "e", 0),
        lambda: decisions.epoch_entry(LogState(), epoch(1, 1), [], 2, "e", 0),
        lambda: decisions.epoch_entry(state, replace(epoch(4, 1), previous=3), [], 2, "e", 0),
        lambda: decisions.seal_entry(LogState(), epoch(1, 1), "e", 0),
        lambda: decisions.seal_entry(state, replace(epoch(4, 1), previous=3), "e", 0),
    ]
    for act in late:
        with pytest.raises(StateError, match="not the target that was claimed"):
            act()


def test_a_release_only_grows_and_stays_within_the_log() -> None:
    state = committed(committed(claimed(LogState(), claim(1)), epoch(0, 1), 1), epoch(1, 1), 1)
    mark = FenceMark(1, 101)
    entry = decisions.release_entry(state, 2, 1, mark, "e", 0)
    assert entry is not None
    state = state.after(entry)
    assert (state.released, state.released_rows, state.total) == (2, 1, 2)
    assert decisions.release_entry(state, 2, 1, mark, "e", 0) is None
    assert decisions.release_entry(state, 1, 1, mark, "e", 0) is None
    with pytest.raises(ValueError, match="has entries up to 3"):
        decisions.release_entry(state, 5, 1, mark, "e", 0)
    reset = claimed(state, claim(2, lineage=2))
    assert (reset.released, reset.released_rows) == (2, 0), "nothing that is visible was released"


def test_registrations_are_written_when_they_change_something() -> None:
    state = LogState()
    for query in ("", "daily"):
        entry = decisions.register_entry(state, "in", query, 0)
        assert entry is not None
        state = state.after(entry)
        assert state.consumers == {"in": query} and decisions.register_entry(state, "in", query, 0) is None
    with pytest.raises(ConfigurationError, match="'out' does not read the exchange; its readers are: 'in'"):
        decisions.forget_entry(state, "out", "e", 0)
    gone = decisions.forget_entry(state, "in", "e", 0)
    assert gone is not None and state.after(gone).consumers == {}
