"""Fenced commits to one log: what a handle has looked at holds when it commits, or it looks again."""

import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from spark_ext.delta import fenced_log
from spark_ext.delta.failures import TableRef
from spark_ext.delta.fenced_log import NO_HOOKS, FencedLog, Write, properties, write_files
from spark_ext.delta.transactions import Fence
from spark_ext.errors import FencedError, SparkExtError, StateError, StorageError

OLD, NEW = Fence("j", 1), Fence("j", 2)
SCHEMA = pa.schema([pa.field("n", pa.int64())])


def opened(path: Path, *, required: bool = False, max_advance: float = 1000) -> FencedLog:
    """A log with a handle of its own, as another process has it."""
    return FencedLog(str(path), TableRef("the table", "the rest"), required=required, max_advance=max_advance)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    opened(tmp_path / "t").create(SCHEMA)
    return tmp_path / "t"


@pytest.fixture(params=["local", "elsewhere"])
def log(path: Path, request: pytest.FixtureRequest) -> FencedLog:
    """With the short cuts of a local file system, and without them."""
    made = opened(path)
    if request.param == "elsewhere":
        made.folder = None
    made.refresh()
    return made


def row(number: int) -> Write:
    def write(table: DeltaTable, commit: CommitProperties) -> None:
        write_deltalake(
            table, pa.table({"n": [number]}), mode="append", commit_properties=commit,
            post_commithook_properties=NO_HOOKS,
        )  # fmt: skip

    return write


def only_transactions(table: DeltaTable, commit: CommitProperties) -> None:
    write_files(table, (), commit)


def rows(path: Path) -> list[int]:
    found: list[int] = sorted(pa.table(DeltaTable(path).scan(columns=["n"]))["n"].to_pylist())
    return found


def before_first(write: Write, happens: Callable[[], object]) -> tuple[Write, list[int]]:
    """A write with something that happens after its first look; and the versions that it was called at."""
    looks: list[int] = []

    def held_up(table: DeltaTable, commit: CommitProperties) -> None:
        looks.append(table.version())
        if len(looks) == 1:
            happens()
        write(table, commit)

    return held_up, looks


def test_a_commit_carries_its_guard_and_nothing_else_happens(path: Path, log: FencedLog) -> None:
    log.commit(row(1), OLD, "appending")
    found = DeltaTable(path)
    assert (found.version(), found.transaction_version("fence:j")) == (1, 1)
    assert {file.name for file in (path / "_delta_log").iterdir()} == {f"{n:020}.json" for n in range(2)}


def test_a_fence_that_comes_between_look_and_commit_is_seen(path: Path, log: FencedLog) -> None:
    successor = opened(path)
    write, looks = before_first(row(1), lambda: successor.commit(only_transactions, NEW, "fencing"))
    with pytest.raises(FencedError, match="incarnation 2 of the job has been started; this is incarnation 1"):
        log.commit(write, OLD, "appending")
    assert looks == [0], "fenced off at the second look, before the second write"
    assert rows(path) == []


def test_a_conflict_is_looked_at_again_and_passes(path: Path, log: FencedLog) -> None:
    write, looks = before_first(row(1), lambda: _added(path, 2, OLD))
    log.commit(write, OLD, "appending")
    assert looks == [0, 1]
    assert rows(path) == [1, 2]


def test_commits_with_other_ids_do_not_conflict(path: Path, log: FencedLog) -> None:
    def others_commit() -> None:
        _added(path, 2, None)
        _added(path, 3, Fence("another", 9))

    write, looks = before_first(row(1), others_commit)
    log.commit(write, OLD, "appending")
    assert looks == [0]
    assert rows(path) == [1, 2, 3]


def test_a_commit_without_guard_hides_no_fence_from_the_next(path: Path, log: FencedLog) -> None:
    """It passes the newer incarnation's commit without a conflict, and takes the handle beyond it."""
    log.commit(row(1), OLD, "appending")
    _added(path, 2, NEW)
    log.commit(row(3), None, "appending")
    with pytest.raises(FencedError):
        log.commit(row(4), OLD, "appending")
    assert rows(path) == [1, 2, 3]


def test_two_starts_of_one_incarnation_fence_each_other_off(path: Path, log: FencedLog) -> None:
    first, copy = Fence("j", 2, 7), Fence("j", 2, 8)
    log.commit(row(1), first, "appending")
    found = DeltaTable(path)
    assert [found.transaction_version(it) for it in ("fence:j", "start:j")] == [2, 7]
    with pytest.raises(FencedError, match="two copies of its state"):
        opened(path).commit(row(2), copy, "appending")
    log.commit(row(3), first, "appending")
    assert rows(path) == [1, 3]


def test_settling_looks_at_the_newest_version_until_answered(path: Path, log: FencedLog) -> None:
    _added(path, 1, None)
    seen: list[int] = []

    def attempt(table: DeltaTable | None) -> str | None:
        assert table is not None
        seen.append(table.version())
        if len(seen) == 1:
            _added(path, 2, None)
            return None
        if len(seen) == 2:
            _added(path, 3, OLD)
            write_files(table, (), properties(OLD.transactions))
        return "done"

    assert log.settle(attempt, "settling") == "done"
    assert seen == [1, 2, 3]


def test_contention_without_end_is_a_named_error(path: Path, log: FencedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fenced_log, "ATTEMPTS", 3)
    others = iter(range(10, 99))
    looks: list[int] = []

    def write(table: DeltaTable, commit: CommitProperties) -> None:
        looks.append(table.version())
        _added(path, next(others), OLD)
        row(0)(table, commit)

    with pytest.raises(StorageError, match=r"appending failed: other writers committed first, 3 times") as caught:
        log.commit(write, OLD, "appending")
    assert caught.value.operator == "the table"
    assert looks == [0, 1, 2]
    assert rows(path) == [10, 11, 12]


def test_a_swap_needs_the_version_expected(path: Path, log: FencedLog) -> None:
    _added(path, 1, None)
    assert not log.compare_and_swap(row(2), OLD, 0, "swapping")
    assert log.version == 1
    assert log.compare_and_swap(row(2), OLD, 1, "swapping")
    assert rows(path) == [1, 2]


def test_a_swap_is_lost_to_any_commit_in_between(path: Path, log: FencedLog) -> None:
    write, looks = before_first(row(1), lambda: _added(path, 2, None))
    assert not log.compare_and_swap(write, OLD, 0, "swapping")
    assert looks == [0], "not tried again: what it was decided on has changed"
    assert (log.version, rows(path)) == (1, [2])


def test_a_swap_of_an_old_incarnation_is_refused(path: Path, log: FencedLog) -> None:
    _added(path, 1, NEW)
    with pytest.raises(FencedError):
        log.compare_and_swap(row(2), OLD, 1, "swapping")


def test_a_single_try_gives_way(path: Path, log: FencedLog) -> None:
    write, looks = before_first(row(1), lambda: _added(path, 2, OLD))
    assert not log.commit_once(write, OLD, "compacting")
    assert looks == [0]
    assert log.commit_once(row(3), OLD, "compacting")
    assert rows(path) == [2, 3]
    _added(path, 4, NEW)
    with pytest.raises(FencedError):
        log.commit_once(row(5), OLD, "compacting")


def test_threads_of_one_log_and_another_process_lose_no_commit(path: Path, log: FencedLog) -> None:
    other, together = opened(path), threading.Barrier(3)

    def work(number: int) -> None:
        together.wait()
        for step in range(5):
            (other if number == 2 else log).commit(row(10 * number + step), OLD, "appending")

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(work, range(3)))
    assert rows(path) == sorted(10 * number + step for number in range(3) for step in range(5))


def test_no_thread_updates_the_handle_between_look_and_commit(path: Path, log: FencedLog) -> None:
    refreshed = threading.Event()

    def refresh() -> None:
        log.refresh()
        refreshed.set()

    def succeed() -> None:
        _added(path, 2, NEW)
        threading.Thread(target=refresh).start()
        assert not refreshed.wait(0.3), "the lock is held"

    write, _ = before_first(row(1), succeed)
    with pytest.raises(FencedError):
        log.commit(write, OLD, "appending")
    assert refreshed.wait(30)
    assert rows(path) == [2]


def test_one_handle_serves_all_commits(path: Path, log: FencedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> DeltaTable:
        raise AssertionError("opened again")

    monkeypatch.setattr(fenced_log, "DeltaTable", refuse)
    for number in range(3):
        log.commit(row(number), OLD, "appending")
    _added(path, 9, OLD)
    log.commit(row(3), OLD, "appending")
    assert rows(path) == [0, 1, 2, 3, 9]


def test_refreshing_tells_whether_there_is_something_new(path: Path, log: FencedLog) -> None:
    assert not log.refresh()
    _added(path, 1, None)
    assert log.refresh()
    assert not log.refresh()


def test_a_number_is_read_once_for_each_version(path: Path, log: FencedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[str] = []
    read = DeltaTable.transaction_version

    def recorded(table: DeltaTable, name: str) -> int | None:
        reads.append(name)
        return read(table, name)

    monkeypatch.setattr(DeltaTable, "transaction_version", recorded)
    log.commit(only_transactions, OLD, "committing")
    log.reopen()
    assert [log.held(OLD.application) for _ in range(3)] == [1, 1, 1]
    log.commit(only_transactions, NEW, "committing")
    log.refresh()
    assert [log.held(OLD.application) for _ in range(3)] == [2, 2, 2]
    assert reads.count(OLD.application) == 3, "at versions 0, 1 and 2"


def test_a_handle_that_has_come_far_is_opened_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = opened(path, max_advance=1)
    log.refresh()
    handles = []
    for number in range(4):
        _added(path, number, None)
        log.refresh()
        handles.append(log.handle)
    assert handles[0] is handles[1]
    assert log.version == 4
    assert handles[2] is not handles[1]


def test_looking_creates_nothing(tmp_path: Path) -> None:
    log = opened(tmp_path / "none", required=True)
    assert not log.exists()
    assert not log.refresh()
    assert (log.handle, log.version, log.held("fence:j")) == (None, None, None)
    assert not (tmp_path / "none").exists()


def test_of_many_creators_one_creates(tmp_path: Path) -> None:
    """One that comes second must not replace the table: it would take the fence of the first out with it."""
    start = threading.Barrier(4)

    def create(number: int) -> list[int | None]:
        found = []
        for repetition in range(8):
            log = opened(tmp_path / str(repetition))
            start.wait()
            log.create(SCHEMA, transactions=[Transaction("creator", number)])
            found.append(log.held("creator"))
        return found

    with ThreadPoolExecutor(4) as pool:
        first, *rest = pool.map(create, range(4))
    assert rest == [first] * 3
    assert [DeltaTable(tmp_path / str(repetition)).version() for repetition in range(8)] == [0] * 8


GONE = ["table", "log", "entries"]


def _remove(path: Path, what: str) -> None:
    if what == "entries":
        for entry in (path / "_delta_log").iterdir():
            entry.unlink()
    else:
        shutil.rmtree(path if what == "table" else path / "_delta_log")


@pytest.mark.parametrize("what", GONE)
def test_a_vanished_required_log_is_lost_and_never_made_anew(path: Path, what: str) -> None:
    log = opened(path, required=True)
    log.refresh()
    log.commit(row(1), OLD, "appending")
    _remove(path, what)
    for _ in range(2):
        with pytest.raises(StateError, match="is gone") as caught:
            log.settle(lambda table: "an answer", "settling")
        assert caught.value.operator == "the table"
    with pytest.raises(StateError, match="is gone"):
        log.compare_and_swap(row(2), OLD, 1, "swapping")
    assert not list(path.rglob("*.json"))


@pytest.mark.parametrize("what", GONE)
def test_another_vanished_log_is_absent_and_may_be_made_again(path: Path, what: str) -> None:
    log = opened(path)
    log.refresh()
    log.commit(row(1), OLD, "appending")
    _remove(path, what)
    assert log.settle(lambda table: (table,), "settling") == (None,)
    with pytest.raises(SparkExtError):
        log.commit(row(2), OLD, "appending")
    assert not list(path.rglob("*.json"))
    log.create(SCHEMA)
    log.commit(row(3), OLD, "appending")
    assert rows(path) == [3]


def test_a_failure_is_translated_and_the_handle_opened_anew(path: Path, log: FencedLog) -> None:
    def failing(table: DeltaTable, commit: CommitProperties) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(StorageError, match="appending failed: no space left"):
        log.commit(failing, OLD, "appending")
    assert log.handle is None
    assert log.refresh()
    log.commit(row(1), OLD, "appending")
    assert rows(path) == [1]


def _added(path: Path, number: int, fence: Fence | None) -> None:
    row(number)(DeltaTable(path), properties(fence.transactions if fence else ()))
