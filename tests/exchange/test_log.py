"""The log of an `arrow` exchange: whoever writes, freezes, dies or deletes, it is one list of entries."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_ext.errors import CommitError, StateError
from spark_ext.exchange.arrow import arrow_parts
from spark_ext.exchange.arrow.log import ArrowLog
from spark_ext.exchange.arrow.master import ArrowMaster
from spark_ext.exchange.contract import Decide
from spark_ext.exchange.descriptor import Descriptor
from spark_ext.exchange.entries import Entry, EntryKind, LogState, Run, Segment
from spark_ext.model.commits import Task
from spark_ext.schemas.ddl import columns
from spark_ext.storage import LocalFolder
from tests.support.recording import Recording


def epoch(state: LogState, application: str = "a", rows: int = 2, segment: str = "") -> Entry:
    kept = (Segment(segment, 10, (Run(0, 0, 1, rows),)),) if segment else ()
    return Entry(
        EntryKind.EPOCH, application=application, epoch=state.last_epoch(application) + 1, rows=(rows,), segments=kept,
        total=state.total + rows,
    )  # fmt: skip


def release(below: int) -> Decide:
    return lambda state: Entry(EntryKind.RELEASE, below=below, total=0) if state.released < below else None


def fold(folder: Path) -> LogState:
    state = LogState()
    for number, file in enumerate(sorted(folder.glob("[0-9]*.json"))):
        assert int(file.stem) == number
        state = state.after(Entry.from_json(file.read_text(), "fold"))
    return state


class Exchange:
    """A master, whose folder has a description and segments."""

    def __init__(self, folder: Path, span: int = 5) -> None:
        self.folder, self.data = folder, folder / "data"
        self.data.mkdir(parents=True, exist_ok=True)
        self.master = ArrowMaster(LocalFolder(folder), "exchange 'e'")
        self.master.register(Descriptor("e", "0", "j", "arrow", 1, (), columns("id int").jsonValue()))
        self.log = self.master._log = self.opened(span)

    def opened(self, span: int = 5) -> ArrowLog:
        return ArrowLog(LocalFolder(self.folder / "log"), "exchange 'e'", span)

    def file(self, number: int) -> Path:
        return self.folder / "log" / f"{number:020}.json"

    def write(self, count: int, log: ArrowLog | None = None) -> None:
        for _ in range(count):
            (log or self.log).append(lambda state: self._with_segment(state), "1")

    def _with_segment(self, state: LogState) -> Entry:
        name = f"i1-e{state.last + 1}-p0-a0-00000000.arrow"
        (self.data / name).touch()
        return epoch(state, segment=name)

    def release(self, below: int) -> None:
        self.log.append(release(below), "1")
        self.master.delete_released()

    def segments(self) -> list[int]:
        return sorted(int(file.name.split("-")[1][1:]) for file in self.data.iterdir())


@pytest.fixture
def exchange(tmp_path: Path) -> Exchange:
    return Exchange(tmp_path / "e")


def test_threads_that_share_a_log_lose_and_repeat_nothing(tmp_path: Path) -> None:
    log = ArrowLog(LocalFolder(tmp_path / "log"), "e", 7)

    def write(application: str) -> None:
        for _ in range(25):
            while True:
                try:
                    state = log.append(lambda state: epoch(state, application), "1")
                except CommitError:
                    continue
                assert state is not None
                break
            log.look()

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(write, [f"app{number}" for number in range(6)]))
    wanted = fold(tmp_path / "log")
    assert wanted.epochs == {f"app{number}": 24 for number in range(6)}
    assert (wanted.last, wanted.total) == (149, 300)
    assert log.look() == ArrowLog(LocalFolder(tmp_path / "log"), "e").look() == wanted
    assert not list((tmp_path / "log").glob(".draft-*"))


def test_a_writer_that_is_always_slower_gives_up_with_an_error(exchange: Exchange, tmp_path: Path) -> None:
    other = exchange.opened()

    def late(state: LogState) -> Entry:
        exchange.write(1, other)
        return epoch(state, "late")

    with pytest.raises(CommitError, match="faster 40 times"):
        exchange.log.append(late, "1")
    assert exchange.log.look().last_epoch("late") == -1


@pytest.mark.parametrize("below", [4, 9, 20])
def test_a_process_out_of_date_continues_from_the_stored_state(exchange: Exchange, below: int) -> None:
    """Also when the entry where it stands is the last one that was deleted, or the first that was not."""
    old, fresh = exchange.opened(), exchange.opened()
    exchange.write(4)
    assert old.look().last == 3
    exchange.write(18)
    exchange.release(below)
    assert len(list((exchange.folder / "log").glob("state-*"))) == 2, "few states are kept"
    exchange.write(2)
    assert exchange.log.numbers()[0] == below
    assert old.look() == fresh.look() == exchange.log.look()
    assert old.look().epochs == {"a": 23}


@pytest.mark.parametrize("below", [4, 5, 9])
@pytest.mark.parametrize("seen", [0, 4])
def test_a_frozen_writer_whose_number_is_gone_decides_again(exchange: Exchange, below: int, seen: int) -> None:
    """Its file can be created, and must not count; also where nothing but its own number is deleted."""
    old, looks = exchange.opened(), list[int]()
    exchange.write(seen)

    def late(state: LogState) -> Entry | None:
        looks.append(state.last)
        if len(looks) == 1:
            exchange.write(20 - seen)
            exchange.release(below)
        return None if state.last_epoch("late") >= 0 else epoch(state, "late")

    assert old.append(late, "1") is not None
    assert looks == [seen - 1, 20]
    assert exchange.file(21).exists()
    assert exchange.log.numbers() == list(range(below, 22))
    assert old.look() == exchange.log.look() == exchange.opened().look()


def test_a_frozen_deleter_lets_no_number_count_twice(exchange: Exchange, monkeypatch: pytest.MonkeyPatch) -> None:
    old = exchange.opened()
    exchange.write(6)
    old.look()
    zombie = Exchange(exchange.folder)
    zombie.log.append(release(3), "1")
    replaced = LocalFolder.write

    def freeze(*given: Any, **options: Any) -> None:
        with monkeypatch.context() as awake:
            awake.setattr(LocalFolder, "write", replaced)
            exchange.write(20)
            exchange.release(18)
        replaced(*given, **options)

    monkeypatch.setattr(LocalFolder, "write", freeze)
    zombie.master.delete_released()
    assert old.append(lambda state: epoch(state, "late"), "1") is not None
    assert exchange.log.look().last_epoch("late") == 0
    assert exchange.log.numbers() == list(range(18, exchange.log.look().last + 1))


@pytest.mark.parametrize("released", [5, 6, 20])
def test_a_reader_does_not_take_such_a_writers_file_for_an_entry(exchange: Exchange, released: int) -> None:
    exchange.write(4)
    old = exchange.opened()
    assert old.look().last == 3
    exchange.write(20)
    exchange.release(released)
    exchange.file(4).write_text(epoch(LogState(), "ghost").to_json())
    assert old.look() == exchange.opened().look()
    assert old.look().last_epoch("ghost") == -1


@pytest.mark.parametrize("left", [0, 20, -1])
def test_an_entry_cut_by_a_power_failure_is_refused_by_name(exchange: Exchange, left: int) -> None:
    exchange.write(3)
    file = exchange.file(1)
    file.write_bytes(file.read_bytes()[:left])
    fresh = exchange.opened()
    for look in (fresh.look, lambda: fresh.entry(1), lambda: fresh.append(epoch, "1")):
        with pytest.raises(StateError, match="empty or truncated") as caught:
            look()
        assert caught.value.operator == "exchange 'e', entry 1"


def test_a_stored_state_is_needed_once_its_entries_are_gone(exchange: Exchange) -> None:
    exchange.write(12)
    max((exchange.folder / "log").glob("state-*")).write_text("")
    assert exchange.opened().look() == exchange.log.look()
    exchange.release(8)
    max((exchange.folder / "log").glob("state-*")).write_text("{")
    with pytest.raises(StateError, match="stored state of the log is empty or damaged"):
        exchange.opened().look()
    for file in (exchange.folder / "log").glob("state-*"):
        file.unlink()
    fresh = exchange.opened()
    for look in (fresh.look, lambda: fresh.append(epoch, "1")):
        with pytest.raises(StateError, match="no state of the log is there"):
            look()
    assert not exchange.file(0).exists()


def test_a_log_deleted_or_made_anew_is_not_continued(exchange: Exchange) -> None:
    """The other one may be longer, and have an entry where this process stands."""
    exchange.write(3)
    aside = exchange.folder.with_name("aside")
    exchange.folder.rename(aside)
    assert exchange.log.look() == LogState()
    another = Exchange(exchange.folder)
    for _ in range(9):
        another.log.append(lambda state: epoch(state, "other"), "1")
    assert exchange.log.look().epochs == {"other": 8}
    shutil.rmtree(exchange.folder)
    aside.rename(exchange.folder)
    assert exchange.log.look().epochs == {"a": 2}
    assert [entry.epoch for number in range(3) if (entry := exchange.log.entry(number))] == [0, 1, 2]


def test_a_log_deleted_before_the_write_is_not_begun_midway(exchange: Exchange) -> None:
    exchange.write(3)
    looks = []

    def decide(state: LogState) -> Entry | None:
        looks.append(state.last)
        if len(looks) == 1:
            shutil.rmtree(exchange.folder)
            return epoch(state)
        return None

    assert exchange.log.append(decide, "1") is None
    assert looks == [2, -1]
    assert exchange.log.numbers() == []


def test_only_leftovers_of_older_incarnations_are_swept(exchange: Exchange) -> None:
    exchange.write(2)
    for writer in (0, 1, 2, 3):
        (exchange.folder / "log" / f".draft-{writer}-abc").touch()
        (exchange.data / f"i{writer}-e9-p0-a0-0000000{writer}.arrow").touch()
    (exchange.data / "notes.txt").touch()
    exchange.master.sweep(2)
    left = {file.name for file in (exchange.folder / "log").glob(".draft-*")}
    assert left == {".draft-0-abc", ".draft-2-abc", ".draft-3-abc"}
    assert {file.name for file in exchange.data.iterdir()} == {
        "i0-e9-p0-a0-00000000.arrow", "i1-e0-p0-a0-00000000.arrow", "i1-e1-p0-a0-00000000.arrow",
        "i2-e9-p0-a0-00000002.arrow", "i3-e9-p0-a0-00000003.arrow", "notes.txt",
    }  # fmt: skip


def test_an_exchange_occupies_what_is_not_released(exchange: Exchange) -> None:
    exchange.write(4)
    exchange.log.append(lambda state: Entry(EntryKind.REGISTER, consumer="in", query="q"), "1")
    exchange.log.append(release(2), "1")
    held = exchange.master.held()
    assert (held.entries, held.rows, held.bytes, held.consumers, held.sealed) == (4, 4, 20, ("in",), False)
    exchange.master.delete_released()
    assert exchange.master.held() == held


def test_rows_and_folders_are_synced_before_the_entry_is(tmp_path: Path) -> None:
    folder = Recording(tmp_path / "x")
    parts = arrow_parts(folder, "e")
    parts.master.register(Descriptor("e", "0", "j", "arrow", 1, (), columns("id int").jsonValue()))
    assert folder.noted() == ["sync .", "sync draft", "link x/exchange.json", "sync x"]
    rows = pa.RecordBatch.from_pydict({"id": pa.array([1, 2], pa.int32())})
    for number, made in enumerate((["sync x"], [])):
        segment = parts.writer.write(iter([(rows, [0, 0])]), Task("s", "q", number, 0, 7, 3, 0), 1)
        assert segment is not None
        assert folder.noted() == [*made, f"sync x/data/{segment.name}", "sync x/data"]
        state = parts.master.log.append(lambda state, one=segment: replace(epoch(state), segments=(one,)), "1")  # type: ignore[misc]
        assert state is not None and state.last == number
        assert folder.noted() == [*made, "sync draft", f"link x/log/{number:020}.json", "sync x/log"]


def test_a_state_is_synced_before_the_entries_below_it_go(tmp_path: Path) -> None:
    folder = Recording(tmp_path / "log")
    log = ArrowLog(folder, "e", span=2)
    for _ in range(2):
        log.append(epoch, "1")
    assert folder.noted()[-3:] == ["sync draft", f"replace log/state-{1:020}.json", "sync log"]
    log.seed(LogState(last=1), {1: log.entry(1)}, "1")  # type: ignore[dict-item]
    assert folder.noted() == [], "nothing is missing"
