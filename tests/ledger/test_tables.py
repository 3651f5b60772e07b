import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError

from spark_ext.delta.transactions import Fence
from spark_ext.errors import FencedError, StateError, StorageError
from spark_ext.ledger.columns import arrow_schema, to_arrow
from spark_ext.ledger.schema import EpochRow, FinishedRow
from spark_ext.ledger.tables import CHECKPOINT_EVERY, LedgerTable
from tests.ledger.rows import START, epoch, flag, line, process
from tests.support.disks import fill, remount, small_disk

OLD, NEW = Fence("j", 1), Fence("j", 2)


@pytest.fixture
def table(tmp_path: Path) -> LedgerTable[EpochRow]:
    return LedgerTable(str(tmp_path / "epochs"), EpochRow)


def again(table: LedgerTable[EpochRow]) -> LedgerTable[EpochRow]:
    return LedgerTable(table.uri, table.row_type)


def numbers(table: LedgerTable[EpochRow]) -> list[int]:
    return sorted(row.epoch for row in table.rows())


def test_a_missing_table_is_empty_and_is_not_made_by_looking(table: LedgerTable[EpochRow]) -> None:
    assert table.rows() == []
    assert table.read(["epoch"]).schema == pa.schema([pa.field("epoch", pa.int64(), False)])
    assert not table.refresh()
    assert not Path(table.uri).exists()


def test_rows_come_back_as_they_were_given(table: LedgerTable[EpochRow]) -> None:
    rows = [epoch(1), replace(epoch(2), input_rows=None, offsets=None), epoch(3, query='it\'s "so"')]
    rows += [epoch(4, at=START.replace(year=1970)), epoch(5, at=START.replace(year=9999, microsecond=999999))]
    table.append(rows)
    assert sorted(again(table).rows(), key=lambda row: row.epoch) == rows
    protocol = DeltaTable(table.uri).protocol()
    assert (protocol.min_reader_version, protocol.min_writer_version) == (1, 2), "the oldest"


def test_conditions_choose_rows(table: LedgerTable[EpochRow]) -> None:
    table.append([epoch(number, query=query) for number in range(5) for query in ("q", "it's")])
    assert [row.epoch for row in table.rows([("query", "=", "it's"), ("epoch", ">", 3)])] == [4]
    assert sorted(table.read(["epoch"], [("epoch", "in", [0, 4]), ("query", "!=", "q")])["epoch"].to_pylist()) == [0, 4]
    assert table.rows([("epoch", "in", [])]) == []
    assert {row.epoch for row in table.rows([("committed_at", "<", epoch(2).committed_at)])} == {0, 1}
    assert len(table.rows([("epoch", "not in", [1, 2, 3])])) == 4
    with pytest.raises(ValueError, match="unknown operator"):
        table.rows([("epoch", "like", 1)])


def test_a_table_of_another_version_can_be_read_and_added_to(tmp_path: Path) -> None:
    schema = arrow_schema(EpochRow)
    older = schema.remove(schema.get_field_index("duration_ms")).append(pa.field("later", pa.string()))
    write_deltalake(str(tmp_path / "epochs"), to_arrow(EpochRow, [epoch(1)]).drop_columns("duration_ms"))
    empty = older.empty_table()
    write_deltalake(str(tmp_path / "epochs"), empty, schema_mode="merge", mode="append")
    table = LedgerTable(str(tmp_path / "epochs"), EpochRow)
    assert [row.duration_ms for row in table.rows()] == [None]
    table.append([epoch(2)], OLD)
    assert {row.epoch: row.duration_ms for row in again(table).rows()} == {1: None, 2: 5}


def test_processes_that_count_by_swaps_lose_no_step(table: LedgerTable[EpochRow]) -> None:
    table.append([epoch(0)])
    script = """
from spark_ext.ledger.tables import LedgerTable
from spark_ext.ledger.schema import EpochRow
table = LedgerTable(uri, EpochRow)
say("ready"); sys.stdin.readline()
done = 0
while done < 8:
    greatest = max(row.epoch for row in table.rows())
    done += table.compare_and_swap([epoch(greatest + 1)], table.version)
say("done")
"""
    with process(script, table.uri) as one, process(script, table.uri) as two:
        assert [line(one), line(two)] == ["ready", "ready"]
        for each in (one, two):
            assert each.stdin is not None
            print(file=each.stdin, flush=True)
        assert [line(one), line(two)] == ["done", "done"]
    assert numbers(table) == list(range(17))


@pytest.mark.slow(1, "as many commits as there are between two checkpoints of the log")
def test_the_fence_holds_when_appends_came_after_it(table: LedgerTable[EpochRow]) -> None:
    table.append([epoch(1)], OLD)
    newer = again(table)
    newer.raise_fence(NEW)
    version = newer.version
    newer.raise_fence(NEW)
    assert newer.version == version, "it is raised once"
    for number in range(2, CHECKPOINT_EVERY + 4):  # beyond a checkpoint of the log
        newer.append([epoch(number)], NEW)
    assert list((Path(table.uri) / "_delta_log").glob("*.checkpoint.parquet"))
    assert numbers(again(table)) == list(range(1, CHECKPOINT_EVERY + 4))
    assert again(table).rows([("epoch", "=", 3)]) == [epoch(3)]
    with pytest.raises(FencedError):
        table.append([epoch(0)], OLD)


def test_delta_refuses_by_application_id_only(table: LedgerTable[EpochRow]) -> None:
    """Why all commits of a job's incarnations carry one and the same id: any other lets a stale handle pass."""
    table.append([epoch(1)])
    data = to_arrow(EpochRow, [epoch(2)])

    def commit(handle: DeltaTable, application: str) -> None:
        carried = CommitProperties(app_transactions=[Transaction(application, 1)])
        write_deltalake(handle, data, mode="append", commit_properties=carried)

    stale = DeltaTable(table.uri)
    commit(DeltaTable(table.uri), "one")
    commit(stale, "another")
    stale = DeltaTable(table.uri)
    commit(DeltaTable(table.uri), "one")
    with pytest.raises(CommitFailedError):
        commit(stale, "one")


@pytest.mark.parametrize("what", ["table", "log", "last version"])
def test_a_table_that_has_gone_is_not_made_again(table: LedgerTable[EpochRow], what: str) -> None:
    table.append([epoch(1)], OLD)
    log = Path(table.uri) / "_delta_log"
    if what == "last version":
        for entry in log.iterdir():
            entry.unlink()
    else:
        shutil.rmtree(table.uri if what == "table" else log)
    for _ in range(2):
        with pytest.raises(StateError, match="is gone") as caught:
            table.append([epoch(2)], OLD)
        assert "epochs" in caught.value.operator
        assert table.uri in caught.value.operator
    with pytest.raises(StateError):
        table.rows()
    assert not list(Path(table.uri).rglob("*.json"))


def test_a_lost_data_file_is_reported(table: LedgerTable[EpochRow]) -> None:
    table.append([epoch(1)])
    for file in Path(table.uri).glob("*.parquet"):
        file.unlink()
    with pytest.raises(StateError, match="is gone"):
        table.rows()


def test_a_path_that_is_a_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError, match=str(tmp_path)):
        LedgerTable(str(tmp_path / "file" / "epochs"), EpochRow).append([epoch(1)])


@pytest.mark.parametrize(
    ("file", "content"),
    [
        (f"_delta_log/{2:020}.json", '{"add":'), (f"_delta_log/{2:020}.json", "\0" * 100),
        (f"_delta_log/{1:020}.json", None), (f"_delta_log/{0:020}.json", None), ("*.parquet", ""),
        ("*.parquet", "PAR1"),
    ],
)  # fmt: skip
def test_a_damaged_table_is_no_outage(table: LedgerTable[EpochRow], file: str, content: str | None) -> None:
    for number in (1, 2):
        table.append([epoch(number)])
    place = next(Path(table.uri).glob(file))
    place.unlink() if content is None else place.write_text(content)
    with pytest.raises(StateError, match="a file of the table is torn, or is missing") as caught:
        again(table).rows()
    assert table.uri in caught.value.operator and "restore the table" in caught.value.do


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", "400k") as place:
        yield place


def test_a_full_disk_is_a_storage_error_and_passes(disk: Path, capfd: pytest.CaptureFixture[str]) -> None:
    table = LedgerTable(str(disk / "epochs"), EpochRow)
    table.append([epoch(1)], OLD)
    filling = fill(disk)
    with pytest.raises(StorageError, match="no space left") as caught:
        table.append([epoch(2)], OLD)
    assert table.uri in caught.value.operator
    assert numbers(again(table)) == [1]
    with pytest.raises(StorageError, match="no space left"):
        LedgerTable(str(disk / "finished"), FinishedRow).append([flag(1)])
    assert "panicked" not in capfd.readouterr().err
    filling.unlink()
    table.append([epoch(2)], OLD)
    assert numbers(again(table)) == [1, 2]


def test_a_read_only_disk_is_a_state_error_and_stays_readable(disk: Path) -> None:
    table = LedgerTable(str(disk / "epochs"), EpochRow)
    table.append([epoch(1)], OLD)
    assert remount(disk, "ro")
    with pytest.raises(StateError, match="read-only"):
        table.append([epoch(2)], OLD)
    with pytest.raises(StateError, match="read-only"):
        LedgerTable(str(disk / "finished"), FinishedRow).create()
    assert numbers(again(table)) == [1]


def test_an_idle_handle_leaks_no_files(table: LedgerTable[EpochRow]) -> None:
    table.append([epoch(1)])
    mine = psutil.Process(os.getpid())
    table.rows()
    before = mine.num_fds()
    for _ in range(20):
        table.rows()
        table.refresh()
    assert mine.num_fds() <= before + 2
