"""`delta_snapshot` with `follow`, of a table with column mapping: a name is that of the version that was planned."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from spark_ext.errors import DataError, StateError
from spark_ext.testing.source_kit import SourceRun
from tests.sources.delta_snapshot.test_follow import started
from tests.sources.delta_snapshot.test_plan import source

MAPPED = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "9"}


def field(name: str, physical: str, id: int, kind: Any = "long") -> dict[str, Any]:
    mapping = {"delta.columnMapping.id": id, "delta.columnMapping.physicalName": physical}
    return {"name": name, "type": kind, "nullable": True, "metadata": mapping}


def struct(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "struct", "fields": list(fields)}


ID = field("id", "p1", 1)
A, A_ANEW = field("a", "p2", 2), field("a", "p3", 3)


class Table:
    def __init__(self, path: Path, *fields: dict[str, Any], **settings: str) -> None:
        self.path, self.version = path, -1
        (path / "_delta_log").mkdir(parents=True)
        protocol = {"minReaderVersion": 2, "minWriterVersion": 5}
        self._settings = {**MAPPED, **settings}
        self.commit({"protocol": protocol}, self.metadata(*fields))

    def metadata(self, *fields: dict[str, Any]) -> dict[str, Any]:
        return {
            "metaData": {
                "id": "t", "format": {"provider": "parquet", "options": {}}, "partitionColumns": [],
                "schemaString": json.dumps(struct(*fields)), "configuration": self._settings, "createdTime": 0,
            }
        }  # fmt: skip

    def columns(self, *fields: dict[str, Any]) -> None:
        self.commit(self.metadata(*fields))

    def insert(self, **row: Any) -> dict[str, Any]:
        action = self.file(**row)
        self.commit(action)
        return action

    def file(self, **row: Any) -> dict[str, Any]:
        path = self.path / f"{len(list(self.path.glob('*.parquet')))}.parquet"
        pq.write_table(pa.Table.from_pylist([row]), path)
        add = {"path": path.name, "size": path.stat().st_size, "stats": json.dumps({"numRecords": 1})}
        return {"add": {**add, "partitionValues": {}, "modificationTime": 0, "dataChange": True}}

    def commit(self, *actions: dict[str, Any]) -> None:
        self.version += 1
        text = "\n".join(json.dumps(action) for action in actions)
        (self.path / f"_delta_log/{self.version:020}.json").write_text(text)


def read(run: SourceRun) -> list[dict[str, Any]]:
    before = run.trace.all_rows().num_rows
    while run.epoch():
        pass
    found: list[dict[str, Any]] = run.trace.all_rows().to_pylist()
    return found[before:]


@pytest.mark.parametrize("split", ["false", "true"])
def test_a_name_that_another_column_takes_is_as_of_the_version(tmp_path: Path, split: str) -> None:
    table = Table(tmp_path / "t", ID, A)
    table.insert(p1=0, p2=100)
    run = started(table.path, starting_version="0", split=split)
    assert read(run) == [{"id": 0, "a": 100}]
    table.insert(p1=1, p2=101)
    table.insert(p1=2, p2=102)
    table.columns(ID)
    table.columns(ID, A_ANEW)
    assert run.epoch()
    assert run.trace.all_rows().to_pylist()[1:] == [{"id": 1, "a": 101}, {"id": 2, "a": 102}]
    with pytest.raises(StateError, match="version 4 of the table drops or renames the column 'a'"):
        read(run)
    run.replay()


def test_a_column_that_is_replaced_in_one_commit_is_refused(tmp_path: Path) -> None:
    table = Table(tmp_path / "t", ID, field("s", "p4", 4, struct(A)), **{"delta.enableChangeDataFeed": "true"})
    first = table.insert(p1=0, p4={"p2": 100})
    run = started(table.path, starting_version="0", changes="true", schema="id bigint, s struct<a: bigint>")
    assert [row["s"] for row in read(run)] == [{"a": 100}]
    table.insert(p1=1, p4={"p2": 101})
    removed = {"path": first["add"]["path"], "dataChange": True, "partitionValues": {}, "size": first["add"]["size"]}
    table.commit(
        table.metadata(ID, field("s", "p4", 4, struct(A_ANEW))), {"remove": removed}, table.file(p1=3, p4={"p3": 103})
    )
    assert run.epoch()
    assert run.trace.all_rows().to_pylist()[1:] == [{"id": 1, "s": {"a": 101}}]
    with pytest.raises(StateError, match="version 3 of the table replaces the column 's' by another one of its name"):
        read(run)


def test_a_new_start_has_the_columns_as_they_are_then(tmp_path: Path) -> None:
    table = Table(tmp_path / "t", ID, A)
    table.insert(p1=0, p2=100)
    table.columns(ID, field("b", "p2", 2))
    run = started(table.path, starting_version="0")
    assert read(run) == [{"id": 0, "b": 100}]
    table.columns(ID, field("b", "p2", 2), A_ANEW)
    run = started(table.path, starting_version="0")
    assert read(run) == [{"id": 0, "b": 100, "a": None}]


def test_a_repeated_epoch_has_planned_names_and_query_columns(tmp_path: Path) -> None:
    table = Table(tmp_path / "t", ID, A, field("c", "p5", 5))
    table.insert(p1=0, p2=100, p5=200)
    run = started(table.path, starting_version="0")
    read(run)
    (channel,) = run.source.discover()
    end = run.offset.running["versions"].at
    table.columns(ID, A_ANEW, field("b", "p2", 2), field("c", "p6", 6, "string"), field("x", "p7", 7))
    made = source(table.path, follow="true", starting_version="0")
    rows = [row for batch in made.read(channel, channel.begin, end) for row in batch.to_pylist()]
    assert rows == [{"id": 0, "a": 100, "b": 100, "c": None, "x": None}]


@pytest.mark.parametrize("changed", [False, True])
def test_a_version_that_cannot_be_rebuilt_takes_the_next_names(tmp_path: Path, changed: bool) -> None:
    """Its commit is there, and the log has been cleaned up before it; unless the columns have changed since."""
    table = Table(tmp_path / "t", ID, A)
    table.insert(p1=0, p2=100)
    run = started(table.path, starting_version="1")
    assert read(run) == [{"id": 0, "a": 100}]
    if changed:
        table.columns(ID, field("b", "p2", 2))
    table.insert(p1=1, p2=101)
    DeltaTable(table.path).create_checkpoint()
    (table.path / f"_delta_log/{0:020}.json").unlink()
    if changed:
        with pytest.raises(DataError, match=r"version 1 of .* can no longer be loaded"):
            run.replay()
    else:
        run.replay()


def test_positions_of_an_older_release_are_continued(tmp_path: Path) -> None:
    table = Table(tmp_path / "t", ID, A)
    table.insert(p1=0, p2=100)
    run = started(table.path, starting_version="0")
    read(run)
    at = run.offset.running["versions"].at
    assert at[4:] == [1]
    (channel,) = run.source.discover()
    made = source(table.path, "id bigint, a bigint", follow="true", starting_version="0")
    rows = [row for batch in made.read(channel, channel.begin, at[:4]) for row in batch.to_pylist()]
    assert rows == [{"id": 0, "a": 100}]
    table.insert(p1=1, p2=101)
    state = run.offset.running["versions"]
    run.offset = replace(run.offset, running={"versions": replace(state, at=at[:4])})
    run.restart()
    assert read(run) == [{"id": 1, "a": 101}]


def test_without_column_mapping_positions_are_as_they_were(tmp_path: Path) -> None:
    table = Table(tmp_path / "t", ID, **{"delta.columnMapping.mode": "none"})
    table.insert(id=0)
    run = started(table.path, starting_version="0")
    assert read(run) == [{"id": 0}]
    assert len(run.offset.running["versions"].at) == 4
