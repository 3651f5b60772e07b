"""The log of `files_2pc`: what was written is read, once and in order, whatever is merged, by whoever at once."""

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_ext.errors import CommitError, StateError
from spark_ext.sinks.files_2pc.epoch_log import Entry, EpochLog, LogState
from spark_ext.storage import LocalFolder


def epoch(number: int, application: str = "a") -> Entry:
    return {"kind": "epoch", "application": application, "epoch": number, "files": [{"path": f"f{number}"}]}


def claim(incarnation: int) -> Entry:
    return {"kind": "claim", "incarnation": incarnation, "start": 70 + incarnation, "job_id": "j"}


def always(entry: Entry) -> Callable[[LogState], Entry]:
    return lambda state: entry


def write(log: EpochLog, *entries: Entry) -> None:
    for entry in entries:
        assert log.append(always(entry), "1") is not None


@given(kinds=st.lists(st.one_of(st.integers(0, 2), st.just("claim")), max_size=90), span=st.integers(2, 5))
@settings(max_examples=40, deadline=None)
def test_a_log_is_the_fold_of_entries(
    tmp_path_factory: pytest.TempPathFactory, kinds: list[int | str], span: int
) -> None:
    folder = tmp_path_factory.mktemp("log") / "l"
    wanted = [claim(n) if kind == "claim" else epoch(n, f"app{kind}") for n, kind in enumerate(kinds)]
    state = LogState()
    for entry in wanted:
        state = state.after(entry)
        # A new object each time, as each epoch of a query has.
        write(EpochLog(LocalFolder(folder), span), entry)
        assert EpochLog(LocalFolder(folder), span).state() == state
    assert list(EpochLog(LocalFolder(folder), span).entries()) == wanted


def test_a_log_of_many_entries_has_few_files(tmp_path: Path) -> None:
    log = EpochLog(LocalFolder(tmp_path), span=5)
    most = 0
    for number in range(700):
        write(log, epoch(number))
        most = max(most, len(list(tmp_path.iterdir())))
    assert most <= 2 * 5 * 5, "two rounds of each of the levels 1, 5, 25, 125 and 625"
    assert [entry["epoch"] for entry in log.entries()] == list(range(700))


def test_writers_at_once_lose_and_repeat_nothing(tmp_path: Path) -> None:
    done = Event()

    def count(application: str) -> None:
        log = EpochLog(LocalFolder(tmp_path), span=3)
        for number in range(60):

            def next_one(state: LogState, number: int = number) -> Entry:
                assert state.epochs.get(application, -1) == number - 1
                return epoch(number, application)

            written = False
            while not written:
                try:
                    written = log.append(next_one, "1") is not None
                except CommitError:
                    continue

    def look() -> int:
        longest: list[Entry] = []
        looks = 0
        while not done.is_set():
            seen = EpochLog(LocalFolder(tmp_path), span=3).entries()
            assert seen[: len(longest)] == longest
            longest, looks = seen, looks + 1
        return looks

    with ThreadPoolExecutor(5) as pool:
        reader = pool.submit(look)
        try:
            for counter in [pool.submit(count, f"app{n}") for n in range(4)]:
                counter.result()
        finally:
            done.set()
        assert reader.result() > 0
    entries = EpochLog(LocalFolder(tmp_path), span=3).entries()
    for name in ("app0", "app1", "app2", "app3"):
        assert [entry["epoch"] for entry in entries if entry["application"] == name] == list(range(60))


def test_a_long_frozen_writer_whose_place_is_gone_decides_again(tmp_path: Path) -> None:
    """The file that it would create is no longer there: it can be created, and must not count."""
    log, other = EpochLog(LocalFolder(tmp_path), span=2), EpochLog(LocalFolder(tmp_path), span=2)
    write(log, epoch(0))
    looks: list[LogState] = []

    def late(state: LogState) -> Entry:
        looks.append(state)
        if len(looks) == 1:
            write(other, *map(epoch, range(1, 12)))
            assert not (tmp_path / f"{1:020}.jsonl").exists(), "merged and deleted"
        return epoch(99)

    assert log.append(late, "1") is not None
    assert [look.last for look in looks] == [0, 11]
    assert [entry["epoch"] for entry in log.entries()] == [*range(12), 99]
    assert not (tmp_path / f"{1:020}.jsonl").exists()


@pytest.mark.parametrize("look", [EpochLog.entries, EpochLog.state])
def test_a_reader_frozen_for_long_looks_again(tmp_path: Path, look: Callable[[EpochLog], object]) -> None:
    """The file that such a writer takes back at once is where the reader saw one that counted."""
    other = EpochLog(LocalFolder(tmp_path), span=2)
    first = tmp_path / f"{0:020}.jsonl"
    write(other, epoch(0))

    class Frozen(EpochLog):
        def _entries(self, piece: object) -> list[Entry]:
            if not other.state().epochs["a"]:
                write(other, *map(epoch, range(1, 8)))
                assert not first.exists(), "merged and deleted"
                write(EpochLog(LocalFolder(tmp_path / "late")), epoch(0, "late"))
                (tmp_path / "late" / first.name).rename(first)
            return super()._entries(piece)  # type: ignore[arg-type]

    assert look(Frozen(LocalFolder(tmp_path), span=2)) == look(other)
    assert first.exists(), "even if it is never taken back"


def test_merging_that_a_crash_prevented_is_made_up_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = EpochLog(LocalFolder(tmp_path), span=3)
    with monkeypatch.context() as crash:
        crash.setattr(EpochLog, "_merge", lambda *_: None)
        write(log, *map(epoch, range(7)))
    write(log, *map(epoch, range(7, 40)))
    assert [entry["epoch"] for entry in log.entries()] == list(range(40))
    assert log.state().epochs == {"a": 39}
    assert (tmp_path / f"{0:020}-{8:020}.jsonl").exists()


def test_entries_that_somebody_has_deleted_are_missed(tmp_path: Path) -> None:
    log = EpochLog(LocalFolder(tmp_path))
    write(log, *map(epoch, range(3)))
    (tmp_path / f"{1:020}.jsonl").unlink()
    with pytest.raises(StateError, match="entries of the log are missing"):
        log.state()


def test_an_entry_whose_folder_is_deleted_is_written_again(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    puts: list[bool] = []

    class Deleted(LocalFolder):
        def create_once(self, *args: Any, **options: Any) -> bool:
            puts.append(super().create_once(*args, **options))
            if len(puts) == 1:
                shutil.rmtree(folder)
            return puts[-1]

    write(EpochLog(Deleted(folder)), epoch(0))
    assert puts == [True, True]
    assert [entry["epoch"] for entry in EpochLog(LocalFolder(folder)).entries()] == [0]


def test_drafts_of_dead_writers_are_swept(tmp_path: Path) -> None:
    for writer in (0, 1, 2):
        (tmp_path / f".draft-{writer}-abc").touch()
    EpochLog(LocalFolder(tmp_path)).sweep(lambda writer: 0 < int(writer) < 2)
    assert sorted(item.name for item in tmp_path.iterdir()) == [".draft-0-abc", ".draft-2-abc"]


@pytest.mark.parametrize("left", [0, 20, -1])
def test_an_entry_emptied_or_cut_by_a_power_failure_is_reported(tmp_path: Path, left: int) -> None:
    """Not passed over, which would commit its epoch again, and not taken for another writer."""
    log = EpochLog(LocalFolder(tmp_path / "l"))
    write(log, epoch(0), epoch(1))
    newest = max((tmp_path / "l").glob("0*.jsonl"))
    newest.write_bytes(newest.read_bytes()[:left])
    for look in (log.state, log.entries, lambda: log.append(always(epoch(2)), "1")):
        with pytest.raises(StateError, match="is empty or truncated") as caught:
            look()
        assert newest.name in caught.value.what
