"""What is in flight at a savepoint: the pure part against a fold of the entries, and put back after whatever crash."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import assume, given, settings

from spark_ext.errors import StateError
from spark_ext.exchange import pinned
from spark_ext.exchange import place as of_files
from spark_ext.exchange.consumers import CommittedFront, Consumer, Fill
from spark_ext.exchange.delta import log as delta_log
from spark_ext.exchange.entries import Entry, EntryKind, LogState
from spark_ext.exchange.inflight import InFlightLog, in_flight, is_abandoned, state_at
from spark_ext.exchange.pinned import pin, put_back, read_pinned
from spark_ext.exchange.positions import Front, advance, rows_before
from spark_ext.exchange.view import ExchangeView
from spark_ext.storage import LocalFolder, Location, link
from spark_ext.testing.exchange_driver import WHO, Place, Producer, Reader
from tests.exchange.test_positions import Log, logs


@st.composite
def histories(draw: st.DrawFn) -> list[Entry]:
    """Random logs: starts, epochs of two writers, cuts, resets, registrations, releases, and seals.

    Nothing is written behind a seal, but for a cut that abandons it.
    """
    entries: list[Entry] = []
    state = LogState()
    lineage = 0
    for _ in range(draw(st.integers(0, 16))):
        kind = draw(st.sampled_from(["epoch"] * 5 + ["cut", "reset", "seal", "claim", "register", "forget", "release"]))
        application = f"a{lineage}-{draw(st.integers(0, 1))}"
        there = [number for number in range(state.last + 1) if state.passes_over(number) is None]
        if kind in ("epoch", "seal") and state.sealed is not None:
            continue
        if kind == "epoch":
            count, epoch = draw(st.integers(0, 5)), state.last_epoch(application) + draw(st.integers(1, 2))
            given_rows = {"rows": (count, 1), "total": state.total + count + 1} if count else {"total": state.total}
            entry = Entry(EntryKind.EPOCH, application=application, epoch=epoch, lineage=lineage, **given_rows)
        elif kind == "cut":
            lineage += 1
            after = draw(st.sampled_from([-1, *there]))
            entry = Entry(EntryKind.CUT, lineage=lineage, after=after, total=_visible(entries, state, after + 1))
        elif kind == "reset":
            lineage += 1
            entry = Entry(EntryKind.CLAIM, incarnation=9, start=9, job_id="j", lineage=lineage, after=-1)
        elif kind == "seal":
            entry = Entry(EntryKind.SEAL, application=application, lineage=lineage, total=state.total)
        elif kind == "claim":
            entry = Entry(EntryKind.CLAIM, incarnation=len(entries) + 1, start=5, job_id="j")
        elif kind == "release":
            below = draw(st.integers(0, state.last + 1))
            entry = Entry(EntryKind.RELEASE, below=below, total=_visible(entries, state, below))
        else:
            entry = Entry(EntryKind(kind), consumer=draw(st.sampled_from("xy")), query="q")
        entries.append(entry)
        state = state.after(entry)
    return entries


def _visible(entries: list[Entry], state: LogState, end: int) -> int:
    return sum(entry.row_count for number, entry in enumerate(entries[:end]) if state.passes_over(number) is None)


def _fold(entries: list[Entry]) -> LogState:
    state = LogState()
    for entry in entries:
        state = state.after(entry)
    return state


@given(entries=histories(), data=st.data())
@settings(max_examples=4 * settings().max_examples, deadline=None)
def test_the_state_at_a_cut_is_the_one_that_was_there(entries: list[Entry], data: st.DataObject) -> None:
    """Concluded from the newest state and the entries that are not released, it is the fold of all before the cut."""
    newest = _fold(entries)
    end = data.draw(st.integers(0, len(entries)))
    assume(not is_abandoned(newest, end))
    first = data.draw(st.integers(0, end))
    there = {number: entry for number, entry in enumerate(entries) if number >= first} if end else {}
    found, fold = state_at(newest, there, first, end), _fold(entries[:end])
    within, later = entries[first:end], entries[end:]
    assert (found.last, found.total, found.cuts) == (fold.last, fold.total, fold.cuts)
    assert (found.released, found.released_rows) == (first, _visible(entries, fold, first))
    assert (found.held, found.job_id, found.consumers) == (None, "", newest.consumers)
    if fold.sealed is None or fold.sealed >= first or newest.sealed == fold.sealed:
        assert (found.sealed, found.sealed_by) == (fold.sealed, fold.sealed_by)
    assert found.epochs.items() <= fold.epochs.items()
    for application in fold.epochs.keys() - found.epochs.keys():
        assert application not in {entry.application for entry in within if entry.kind is EntryKind.EPOCH}
        assert application in {entry.application for entry in later if entry.kind is EntryKind.EPOCH}
    if any(entry.kind in (EntryKind.EPOCH, EntryKind.SEAL) or entry.after is not None for entry in within):
        assert found.lineage == fold.lineage


@given(entries=histories(), data=st.data())
@settings(deadline=None)
def test_the_list_of_entries_is_read_as_it_was_written(entries: list[Entry], data: st.DataObject) -> None:
    newest, end = _fold(entries), data.draw(st.integers(0, len(entries)))
    assume(not is_abandoned(newest, end))
    log = in_flight("id", newest, dict(enumerate(entries)), data.draw(st.integers(0, end)), end)
    text = log.to_json()
    assert InFlightLog.from_json(text, "e") == log
    assert (log.end, log.rows) == (end, log.state.total - log.state.released_rows)
    if end:
        with pytest.raises(ValueError, match="are in flight"):
            log.continued(end - 1, 1, 0)
    with pytest.raises(StateError, match="damaged, or something else"):
        InFlightLog.from_json(text[: data.draw(st.integers(0, len(text) - 1))], "e")


@given(log=logs(), data=st.data())
@settings(max_examples=5 * settings().max_examples // 2, deadline=None)
def test_readers_read_what_was_put_back_and_then_what_comes(log: Log, data: st.DataObject) -> None:
    """From any position up to any end, with any limits; entries before the position and in the gap are not there."""
    limits = st.one_of(st.none(), st.integers(1, 12))
    none = (0,) * log.partitions
    end = data.draw(st.integers(0, len(log.entries)))
    assume(not is_abandoned(log.state, end))
    fold = _fold(log.entries[:end])
    front = Front(0, none)
    before = lambda number: log.entries[number] if number < end else None  # noqa: E731
    for _ in range(data.draw(st.integers(0, 6))):
        front = advance(fold, before, front, data.draw(limits), None).front
    inside = [number for number in range(end) if log.entries[number].rows and fold.passes_over(number) is None]
    expected = [
        [(number, row) for number in inside for row in range(log.entries[number].rows[part])]
        for part in range(log.partitions)
    ]
    behind = [[one for one in part if one < (front.entry, front.rows[at])] for at, part in enumerate(expected)]
    flight = in_flight("id", log.state, dict(enumerate(log.entries)), front.entry, end)
    assert not any(segment.name.startswith(f"s{number}-") for segment in flight.segments for number in range(end)
                   if number not in inside)  # fmt: skip
    number = end + data.draw(st.integers(0, 9))
    state, entries = flight.continued(number, 7, 0)
    fresh = Log(log.partitions, [entries.get(one) for one in range(number + 1)], state, inside)  # type: ignore[misc]
    assert rows_before(fresh.at, state, front) == sum(map(len, behind))
    if state.sealed is None:
        fresh.epoch([2] * log.partitions)
    for part, there in enumerate(expected if state.sealed is None else []):
        there += [(number + 1, 0), (number + 1, 1)] if part < log.partitions else []
    read, sealed = behind, front.entry > state.sealed if state.sealed is not None else False
    while not sealed:
        step = advance(fresh.state, fresh.at, front, data.draw(limits), data.draw(limits))
        if not step.moved:
            break
        assert step.barrier is None
        for part, there in enumerate(read):
            there += fresh.read(part, front.position(part), step.front.position(part))
        front, sealed = step.front, step.sealed
    assert read == expected
    assert sealed is (state.sealed is not None)


@pytest.fixture(params=["arrow", "delta"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Four epochs in entries 1 to 4, of which the last three are pinned beside it."""
    made = Place(request.param, str(tmp_path / "flights"))
    producer = Producer(made).claim()
    for epoch in range(4):
        producer.run(epoch, epoch * 10, epoch * 10 + 10)
    pin(made.parts().master, made.path, 2, 5, f"{made.path}-pinned")
    return made


def again(place: Place, number: int = 9, lineage: int = 1, name: str = "fresh") -> Place:
    made = Place(place.kind, str(Path(place.path).with_name(name)))
    put_back(f"{place.path}-pinned", made.path, number=number, lineage=lineage, job_id="job-1", who=WHO)
    return made


def test_segments_are_linked_and_not_copied(place: Place) -> None:
    fresh = again(place)
    for name in fresh.stored():
        folders = (place.path, f"{place.path}-pinned", fresh.path)
        assert len({Path(folder, "data", name).stat().st_ino for folder in folders}) == 1
    assert len(fresh.stored()) == 3


@pytest.mark.slow(0.2, "a crash at each of its steps")
@pytest.mark.parametrize("step", range(9))
def test_put_back_that_crashes_is_completed_later(place: Place, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Under another number, as a later attempt has; until then nobody takes the folder for an exchange with entries."""
    passed = 0

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **more: Any) -> Any:
            nonlocal passed
            if passed == step:
                raise OSError("no space left")
            passed += 1
            return real(*given, **more)

        return call

    with monkeypatch.context() as crash:
        crash.setattr(of_files, "link", counted(link))
        for module, names in ((LocalFolder, ("write", "create_once")), (delta_log, ("write_files", "begin_at"))):
            for name in names:
                crash.setattr(module, name, counted(getattr(module, name)))
        try:
            fresh = again(place)
        except Exception as problem:
            assert "no space left" in str(problem)
            fresh = Place(place.kind, str(Path(place.path).with_name("fresh")))
            try:
                assert fresh.parts().master.log.look().last in (-1, 9)
            except StateError as unfinished:
                assert "are not there" in str(unfinished)
        else:
            assert passed <= step
    assert again(place, 12, 2) == fresh
    state = fresh.parts().master.log.look()
    assert (state.last, state.lineage, state.total) == (12, 2, 40)
    Producer(fresh, 2, lineage=2).claim().run(0, 40, 50)
    assert Reader(fresh).all().ids == list(range(10, 50))
    assert not (Path(fresh.path) / pinned.UNFINISHED).exists()


def test_on_an_object_store_an_earlier_attempt_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Place("delta", str(tmp_path / "flights"))
    Producer(made).claim().run(0, 0, 10)
    pin(made.parts().master, made.path, 1, 2, f"{made.path}-pinned")
    monkeypatch.setattr(Location, "of", staticmethod(lambda path, options: Location(path, options)))
    fresh = tmp_path / "fresh"
    (fresh / "data").mkdir(parents=True)
    target = Place("delta", f"file://{fresh}")
    for number, lineage in ((9, 1), (12, 2), (12, 2)):
        put_back(f"{made.path}-pinned", target.path, number=number, lineage=lineage, job_id="job-1", who=WHO)
        state = target.parts().master.log.look()
        assert (state.last, state.lineage, state.total) == (number, lineage, 10)
    Producer(target, 2, lineage=2).claim().run(0, 10, 20)
    assert Reader(target).all().ids == list(range(20))
    with pytest.raises(StateError, match="already, which is in use"):
        put_back(f"{made.path}-pinned", target.path, number=20, lineage=3, job_id="job-1", who=WHO)
    assert Reader(target).all().ids == list(range(20))


def test_put_back_touches_nothing_else(place: Place, tmp_path: Path) -> None:
    (tmp_path / "fresh").mkdir()
    (tmp_path / "fresh" / ".profile").write_text("mine")
    with pytest.raises(StateError, match="is not empty"):
        again(place)
    assert (tmp_path / "fresh" / ".profile").read_text() == "mine"
    Producer(Place(place.kind, str(tmp_path / "other"))).claim()
    with pytest.raises(StateError, match="already, which is in use"):
        again(place, name="other")
    Place(place.kind, str(tmp_path / "third")).parts().master.register(place.descriptor())
    with pytest.raises(StateError, match="already, which is another one"):
        again(place, name="third")


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("log.json", None, "log.json is missing"),
        ("exchange.json", None, "exchange.json is missing"),
        ("log.json", lambda text: text[:-9], "list of entries is damaged"),
        ("log.json", lambda text: "[]", "list of entries is damaged"),
        ("log.json", lambda text: json.dumps({**json.loads(text), "version": 2}), "version 2; this release reads"),
        ("log.json", lambda text: json.dumps({**json.loads(text), "exchange": "x"}), "are of two exchanges"),
        ("exchange.json", lambda text: "{", "description cannot be read"),
        ("data", None, "is missing"),
        ("data", lambda text: text[:-1], "bytes instead of"),
    ],
)
def test_a_damaged_or_foreign_savepoint_is_refused(
    place: Place, tmp_path: Path, file: str, change: Callable[[Any], Any] | None, message: str
) -> None:
    found = Path(f"{place.path}-pinned") / file
    if file == "data":
        found = min(found.iterdir())
    text = found.read_bytes() if file == "data" else found.read_text()
    found.unlink()
    if change is not None:
        changed = change(text)
        found.write_bytes(changed if isinstance(changed, bytes) else changed.encode())
    with pytest.raises(StateError, match=message) as caught:
        again(place)
    assert caught.value.operator.startswith(f"{WHO}, savepoint at {place.path}-pinned")
    assert not (tmp_path / "fresh").exists()


def test_an_exchange_is_empty_after_a_reset_of_its_producer(place: Place, tmp_path: Path) -> None:
    """The log still has what the older lineage has written, sealed and released, and its rows are gone."""
    producer = Producer(place)
    producer.seal(4)
    producer.release(4, 30)
    producer.parts.master.delete_released()
    made = pin(place.parts().master, place.path, 0, 0, str(tmp_path / "reset-pinned"))
    assert (made.log.first, made.log.end, made.log.rows, made.files) == (0, 0, 0, ("exchange.json", "log.json"))
    fresh = Place(place.kind, str(tmp_path / "reset"))
    put_back(str(tmp_path / "reset-pinned"), fresh.path, number=9, lineage=1, job_id="job-1", who=WHO)
    Producer(fresh, 2, lineage=1).claim().run(0, 40, 50)
    assert Reader(fresh).all().ids == list(range(40, 50))


def test_an_older_attempt_to_pin_is_replaced(place: Place) -> None:
    made = pin(place.parts().master, place.path, 3, 5, f"{place.path}-pinned")
    assert read_pinned(f"{place.path}-pinned", WHO) == made
    assert (made.log.first, made.log.end, made.log.rows) == (3, 5, 20)
    assert made.log.bytes == sum(segment.bytes for segment in made.log.segments) > 0


def test_rows_put_back_are_counted_with_the_first_epochs(place: Place) -> None:
    """They are in flight at a cut that is taken before the producer has written anything."""
    fresh = again(place)
    view = ExchangeView(fresh.parts().master)
    assert view.look()
    assert [view.entries_upto("new", epoch) for epoch in (-1, 0, 7)] == [0, 10, 10]
    assert view.rows_between("x", Front(3, (1, 0, 0)), 10) == 19
    producer = Producer(fresh, 2, lineage=1).claim()
    for epoch in (8, 9):
        producer.run(epoch, epoch * 10, epoch * 10 + 10)
    application = producer.epoch(0).application
    late = ExchangeView(fresh.parts().master)
    assert view.look() and late.look()
    for one in (view, late):
        assert [one.entries_upto(application, epoch) for epoch in (7, 8, 9)] == [10, 12, 13]
        assert one.rows_between("x", Front(5, (0, 0, 0)), 13) == 20


def test_a_producer_waits_for_what_was_put_back(place: Place) -> None:
    class At(CommittedFront):
        def __init__(self, *rows: int, entry: int) -> None:
            self.at = Front(entry, rows)

        def look(self) -> Front:
            return self.at

    fill = Fill(again(place).parts().master.log, [], 3)
    for front, left in ((At(1, 1, 0, entry=3), 18), (At(0, 0, 0, entry=5), 0), (At(0, 0, 0, entry=10), 0)):
        fill._fronts = [(Consumer("x", "", "q"), front)]
        assert fill.level().rows == left
