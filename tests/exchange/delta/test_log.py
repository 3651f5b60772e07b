"""A `delta` exchange, where its table is cleaned up, compacted, damaged or of something else; what it refuses."""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, TableFeatures, write_deltalake
from deltalake.transaction import AddAction
from pyspark.sql import types as T
from typing_extensions import Self

from spark_ext.delta.fenced_log import write_files
from spark_ext.errors import CommitError, ConfigurationError, StateError, StorageError, UnsupportedTableError
from spark_ext.exchange.contract import Parts
from spark_ext.exchange.delta import delta_parts
from spark_ext.exchange.delta.log import DeltaLog
from spark_ext.exchange.delta.segments import incarnation_of
from spark_ext.exchange.entries import Entry, EntryKind, LogState
from spark_ext.exchange.pinned import pin, put_back
from spark_ext.exchange.positions import Front
from spark_ext.storage import Location
from spark_ext.testing.exchange_contract import ExchangeContract
from spark_ext.testing.exchange_driver import WHO, Place, Producer, Reader
from spark_ext.testing.waiting import until

WRITE_FILES = "spark_ext.exchange.delta.log.write_files"


class ByUri(Place):
    """Through the stores of `deltalake`, as on an object store."""

    def at(self, path: str) -> Self:
        Path(path).mkdir(exist_ok=True)  # what the store of local files asks for, unlike others
        return super().at(path)

    def parts(self) -> Parts:
        return delta_parts(Location(f"file://{self.path}"), WHO)


@pytest.fixture(params=[Place, ByUri])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    made: Place = request.param("delta", str(tmp_path / "flights"))
    Path(made.path).mkdir()
    return made


class TestByUri(ExchangeContract):
    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        (tmp_path / "flights").mkdir()  # what the store of local files asks for, unlike others
        return ByUri("delta", str(tmp_path / "flights"))

    def test_x3_an_exchange_that_is_deleted_under_its_job_is_noticed(self, place: Place) -> None:
        pytest.skip("on an object store it is noticed at the next start")


@pytest.fixture
def local(tmp_path: Path) -> Place:
    return Place("delta", str(tmp_path / "flights"))


def log_files(place: Place) -> list[Path]:
    return sorted((Path(place.path) / "_delta_log").glob("*.json"))


def clean_up(place: Place) -> None:
    """Checkpoint the table's log and delete all log files before, as if they had expired."""
    table = DeltaTable(place.path)
    table.create_checkpoint()
    old = time.time() - 7 * 86400
    for file in log_files(place)[:-1]:
        os.utime(file, (old, old))
    table.cleanup_metadata()
    assert len(log_files(place)) == 1


def log_of(place: Place) -> DeltaLog:
    found = place.parts().master.log
    assert isinstance(found, DeltaLog)
    return found


def test_positions_stay_valid_when_old_log_files_are_deleted(place: Place) -> None:
    producer = Producer(place).claim()
    early = Reader(place)
    for epoch in range(6):
        producer.run(epoch, epoch * 10, epoch * 10 + 10)
        if epoch == 1:
            early.all()
    clean_up(place)
    if isinstance(place, ByUri):
        log = early.parts.master.log
        assert isinstance(log, DeltaLog)
        log._looked = (0.0, 0.0)  # on an object store only the time says that files may be gone
    assert early.all().rows == Reader(place).all().rows
    assert Reader(place, at=Front(4, (1, 0, 0))).all().ids == list(range(31, 60)), "entry 4 begins with row 30"
    state = producer.run(6, 60, 70)
    assert state is not None and state.last == 7
    assert early.all().ids == list(range(70))


@pytest.mark.slow(1, "sixty commits to a Delta log")
def test_the_log_is_checkpointed_so_a_late_reader_opens_little(local: Place) -> None:
    producer = Producer(local).claim()
    producer.parts.master.log._every = 20  # type: ignore[attr-defined]
    for number in range(60):
        producer.register(f"reader-{number}")
        time.sleep(0.002)
    until((Path(local.path) / "_delta_log" / "_last_checkpoint").exists, "a log checkpoint", 20)
    assert len(log_of(local).look().consumers) == 60


def test_compaction_and_vacuum_find_nothing_to_do(local: Place) -> None:
    producer = Producer(local).claim()
    producer.run(0, 0, 30, tasks=3)
    producer.run(1, 30, 60, tasks=3)
    table = DeltaTable(local.path)
    assert table.optimize.compact()["numFilesRemoved"] == 0
    assert table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False) == []
    assert Reader(local).all().ids == list(range(60))
    producer.run(2, 60, 70)
    assert Reader(local).all().ids == list(range(70))


def test_it_is_a_delta_table_with_the_rows_that_are_held(local: Place) -> None:
    producer = Producer(local).claim()
    for epoch in range(3):
        producer.run(epoch, epoch * 10, epoch * 10 + 10)
    producer.release(3, 20)
    producer.parts.master.delete_released()
    table = DeltaTable(local.path)
    assert sorted(table.to_pyarrow_table(columns=["id"])["id"].to_pylist()) == list(range(20, 30))
    assert table.metadata().name == "flights"
    assert set(table.to_pyarrow_table().schema.names) >= {"id", "name", "__spark_ext_entry"}


def test_a_write_that_took_too_long_is_checked(local: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its log file may have got a number that was used and cleaned up: nobody reads it."""
    Producer(local).claim()
    other = Producer(local)
    log = DeltaLog(Location(local.path), WHO, stale=0)
    calls = 0

    def write(table: DeltaTable, files: Sequence[AddAction], *args: Any, **kwargs: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            other.register("faster")
        else:
            write_files(table, files, *args, **kwargs)

    monkeypatch.setattr(WRITE_FILES, write)
    writer = Producer(local)
    writer.parts.master._log = log  # type: ignore[attr-defined]
    state = writer.register("slow")
    assert state is not None and list(state.consumers) == ["faster", "slow"]
    assert list(log_of(local).look().consumers) == ["faster", "slow"]


def test_a_commit_frozen_while_the_table_was_replaced(local: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its log file is there, under the next version of the former table: it damages nothing, and counts nowhere."""
    producer = Producer(local).claim()
    producer.run(0, 0, 10)
    producer.run(1, 10, 20)
    pin(producer.parts.master, local.path, 1, 3, f"{local.path}-pinned")
    put_back(f"{local.path}-pinned", f"{local.path}-new", number=9, lineage=1, job_id="job-1", who=WHO)
    watching = log_of(local)
    watching.look()
    states: list[LogState] = []

    def write(table: DeltaTable, files: Sequence[AddAction], *args: Any, **kwargs: Any) -> None:
        write_files(table, files, *args, **kwargs)
        late = log_files(local)[-1]
        Path(local.path).rename(f"{local.path}-old")
        Path(f"{local.path}-new").rename(local.path)
        Path(f"{local.path}-old", "_delta_log", late.name).rename(late)

    def decide(state: LogState) -> Entry | None:
        states.append(state)
        return Entry(EntryKind.REGISTER, consumer="ghost", query="q") if len(states) == 1 else None

    monkeypatch.setattr(WRITE_FILES, write)
    assert producer.parts.master.log.append(decide, "1") is None
    monkeypatch.undo()
    assert [state.last for state in states] == [2, 9]
    assert watching.look() == log_of(local).look() == states[1]
    Producer(local, 2, lineage=1).claim().run(0, 20, 30)
    DeltaTable(local.path).create_checkpoint()
    assert Reader(local).all().ids == list(range(30))
    assert watching.look() == log_of(local).look()


def test_other_writers_that_are_always_faster(local: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    producer, other = Producer(local).claim(), Producer(local)
    monkeypatch.setattr("spark_ext.delta.fenced_log.ATTEMPTS", 3)
    markers = set((Path(local.path) / "data").iterdir())

    def write(table: DeltaTable, *args: Any, **kwargs: Any) -> None:
        monkeypatch.setattr(WRITE_FILES, write_files)
        other.register(f"reader-{table.version()}")
        monkeypatch.setattr(WRITE_FILES, write)
        write_files(table, *args, **kwargs)

    monkeypatch.setattr(WRITE_FILES, write)
    with pytest.raises(CommitError, match="other writers committed to the exchange first, 3 times"):
        producer.register("slow")
    assert list(log_of(local).look().consumers) == ["reader-1", "reader-2", "reader-3"]
    left = set((Path(local.path) / "data").iterdir()) - markers
    assert len(left) == 3, "the empty files of entries that were not written are deleted"


def test_storage_that_fails_is_not_taken_for_an_empty_log(local: Place) -> None:
    producer = Producer(local).claim()
    folder = Path(local.path) / "_delta_log"
    (folder / f"{2:020}.json").mkdir()
    with pytest.raises(StorageError):
        producer.parts.master.log.look()
    (folder / f"{2:020}.json").rmdir()
    assert producer.register("reader") is not None


def test_an_entry_for_an_exchange_that_is_not_there(local: Place) -> None:
    with pytest.raises(StateError, match="no exchange found at"):
        Producer(local).register("reader")
    assert not Path(local.path).exists()


def test_an_entry_that_is_missing_is_an_error(local: Place) -> None:
    producer = Producer(local).claim()
    for number in range(4):
        producer.register(f"reader-{number}")
    DeltaTable(local.path).delete("__spark_ext_entry = 2")
    with pytest.raises(StateError, match="entry 3 of its log follows entry 1"):
        log_of(local).look()


@pytest.mark.parametrize("line", ["{", "[]", '{"add": {"path": "x"}}', '{"add": {"path": "x", "partitionValues": {}}}'])
def test_a_commit_of_something_else_is_an_error(local: Place, line: str) -> None:
    Producer(local).claim()
    log = log_of(local)
    log.look()
    (Path(local.path) / "_delta_log" / f"{2:020}.json").write_text(f"{line}\n")
    with pytest.raises(StateError, match="a commit of its table is damaged, or was written by something else"):
        log.look()


def test_a_table_that_is_no_exchange_is_refused(local: Place) -> None:
    write_deltalake(local.path, pa.table({"id": [1, 2]}))
    master = local.parts().master
    for act in (master.describe, lambda: master.register(local.descriptor()), master.log.look):
        with pytest.raises(StateError, match=f"there is a Delta table at {local.path}, and it is not an exchange"):
            act()
    assert DeltaTable(local.path).version() == 0


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (T.StructType(), "the rows have no columns"),
        (T.StructType().add("a", T.DayTimeIntervalType()), "column 'a' has the type interval day to second"),
        (T.StructType().add("a b", T.LongType()), "column name 'a b' contains ' '"),
        (T.StructType().add("__SPARK_EXT_BODY", T.LongType()), "a column '__SPARK_EXT_BODY', which the exchange uses"),
    ],
)
def test_rows_that_delta_does_not_store(local: Place, schema: T.StructType, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        local.parts().master.register(local.descriptor(schema=schema))
    assert not Path(local.path).exists()


def test_properties_and_features_that_it_does_not_bear(local: Place) -> None:
    Producer(local).claim()
    alter = DeltaTable(local.path).alter
    alter.set_table_properties({"delta.appendOnly": "true"})
    with pytest.raises(UnsupportedTableError, match=r"uses delta\.appendOnly"):
        local.parts().master.describe()
    alter.add_feature(TableFeatures.DeletionVectors, allow_protocol_versions_increase=True)
    for act in (local.parts().master.describe, local.parts().master.log.look):
        with pytest.raises(UnsupportedTableError, match=r"deletionVectors.*, which an exchange does not write"):
            act()


def test_names_of_files() -> None:
    assert incarnation_of("data/i12-e3-p0-a17-0123abcd.parquet") == 12
    assert incarnation_of("data/entry-7-0123abcd.parquet") == 7
    assert incarnation_of("data/part-x.parquet") is None
    assert incarnation_of("x/i12-e3-p0-a17-0123abcd.parquet") is None
