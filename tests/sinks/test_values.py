"""Each sink, from Arrow to an independent reader: a value is there as it was given, or its row is refused unwritten."""

import json
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types as T

from spark_ext.errors import DataError
from spark_ext.model.commits import Task
from spark_ext.model.identity import Identity
from spark_ext.sinks.contract import TwoPhaseCommitSink
from spark_ext.sinks.http_2pc.sink import HttpTwoPhaseCommit
from spark_ext.sinks.kafka_2pc.sink import KafkaTwoPhaseCommit
from spark_ext.sinks.runtime.writer import write_task
from spark_ext.testing.sink_bad_rows import BadRowsKit
from spark_ext.testing.sink_driver import STATES, Driver, SinkTarget
from tests.conformance.test_commit_delta import DeltaTarget, UpsertTarget
from tests.exchange.exchange_kit import ExchangeTarget
from tests.sinks.files_2pc.files_target import FilesTarget, csv_table
from tests.values import table
from tests.values.cells import check_cell, marks
from tests.values.forms import batch_of, columns, from_json, from_text, leaves, plain
from tests.values.table import ARRAYS, BAD, START, TYPES, VALUES, Row

# Has a sink store rows in an empty folder, and reads the column `v` by somebody else's reader.
Put = Callable[[Path, T.StructType, pa.RecordBatch], list[Any]]


def committed(target: SinkTarget, schema: T.StructType, batch: pa.RecordBatch, **options: str) -> None:
    target.sink(**options).validate(schema)
    driver = Driver(target, incarnation=0, schema=schema, options={"commit_attempts": "1", **options})
    driver.commit([driver.write_batches(0, iter([batch]))], 0)


def delta(kind: type[DeltaTarget]) -> Put:
    def put(folder: Path, schema: T.StructType, batch: pa.RecordBatch) -> list[Any]:
        committed(kind(folder), schema, batch)
        return [plain(value) for value in DeltaTable(folder).to_pyarrow_table().sort_by("id")["v"]]

    return put


def by_partition(found: list[tuple[Path, str | None]], schema: T.StructType) -> list[Any]:
    values = {
        number: None if text is None else from_text(schema["v"].dataType, text)
        for file, text in found
        for number in pq.ParquetFile(file).read()["id"].to_pylist()
    }
    return [values[number] for number in sorted(values)]


def delta_partitions(kind: type[DeltaTarget]) -> Put:
    def put(folder: Path, schema: T.StructType, batch: pa.RecordBatch) -> list[Any]:
        committed(kind(folder), schema, batch, partition_by="v")
        actions = [json.loads(line) for entry in folder.glob("_delta_log/*.json") for line in lines(entry.read_text())]
        adds = [action["add"] for action in actions if "add" in action]
        return by_partition([(folder / unquote(add["path"]), add["partitionValues"]["v"]) for add in adds], schema)

    return put


def folders(folder: Path, schema: T.StructType, batch: pa.RecordBatch) -> list[Any]:
    committed(FilesTarget(folder, "parquet"), schema, batch, partition_by="v")
    files = [(file, unquote(file.parent.name.removeprefix("v="))) for file in folder.glob("_files/*/part-*")]
    return by_partition(
        [(file, None if text == "__HIVE_DEFAULT_PARTITION__" else text) for file, text in files], schema
    )


def exchange(folder: Path, schema: T.StructType, batch: pa.RecordBatch) -> list[Any]:
    committed(ExchangeTarget(folder, partitions="1"), schema, batch)
    (file,) = folder.glob("out/data/*.arrow")
    return [plain(value) for value in pa.ipc.open_file(file).read_all()["v"]]


def delta_exchange(folder: Path, schema: T.StructType, batch: pa.RecordBatch) -> list[Any]:
    committed(ExchangeTarget(folder, partitions="1", kind="delta"), schema, batch)
    return [plain(value) for value in pq.read_table(next(folder.glob("out/data/*.parquet")))["v"]]


def files(form: str) -> Put:
    def put(folder: Path, schema: T.StructType, batch: pa.RecordBatch) -> list[Any]:
        committed(FilesTarget(folder, form), schema, batch)
        (file,) = (folder / "_files").iterdir()
        if form == "json":
            return [from_json(schema["v"].dataType, json.loads(line)["v"]) for line in lines(file.read_text("utf-8"))]
        table = pq.read_table(file) if form == "parquet" else csv_table(file, batch.schema)
        return [plain(value) for value in table["v"]]

    return put


def task(sink: TwoPhaseCommitSink, schema: T.StructType, batches: list[pa.RecordBatch]) -> None:
    write_task(sink, schema, iter(batches), Task("out", "q", 0, 0, 0, 0, 0), Identity())


def http(folder: Path, schema: T.StructType, batch: pa.RecordBatch) -> list[Any]:
    """The lines of the outbox, which are sent as they are."""
    sink = HttpTwoPhaseCommit({"uid": "out", "url": "http://127.0.0.1:1", "outbox": str(folder)})
    sink.validate(schema)
    task(sink, schema, [batch])
    (file,) = folder.rglob("part-*.parquet")
    found = [line for piece in pq.ParquetFile(file).read()["lines"].to_pylist() for line in lines(piece)]
    return [from_json(schema["v"].dataType, json.loads(line)["v"]) for line in found]


def kafka(folder: Path, schema: T.StructType, batch: pa.RecordBatch) -> list[Any]:
    """The messages as they are staged, which are sent as they are."""
    given = {"uid": "out", "topic": "t", "bootstrap_servers": "127.0.0.1:1", "staging": str(folder)}
    messages = T.StructType([T.StructField("value", schema["v"].dataType)])
    batches = [batch.select(["v"]).rename_columns(["value"])] if batch.num_columns else []  # of types without Arrow
    task(KafkaTwoPhaseCommit(given), messages, batches)
    (file,) = folder.rglob("*.arrow")
    return [plain(value) for value in pa.ipc.open_stream(file).read_all()["value"]]


def lines(text: str) -> list[str]:
    return [line for line in text.split("\n") if line]


# The columns of the table whose targets need no server.
SINKS: Final[dict[str, Put]] = {
    "delta_2pc": delta(DeltaTarget),
    "delta_2pc, upsert": delta(UpsertTarget),
    "delta_2pc, partition": delta_partitions(DeltaTarget),
    "delta_2pc, partition of an upsert": delta_partitions(UpsertTarget),
    "files_2pc, Parquet": files("parquet"),
    "files_2pc, JSON": files("json"),
    "files_2pc, CSV": files("csv"),
    "files_2pc, folder": folders,
    "exchange_2pc": exchange,
    "exchange_2pc, Delta": delta_exchange,
    "http_2pc": http,
    "kafka_2pc": kafka,
}
CELLS = [
    pytest.param(name, row, id=f"{name}: {row.type} {row.what}", marks=marks(name))
    for name in SINKS
    for row in (*VALUES, *TYPES)
]


@pytest.mark.parametrize(("name", "row"), CELLS)
def test_each_cell_is_what_the_sink_does(tmp_path: Path, name: str, row: Row) -> None:
    numbers = count()
    check_cell(name, row, lambda kind, values: SINKS[name](tmp_path / str(next(numbers)), *batch_of(kind, values)))
    assert table.SINKS[name].get(row) != BAD or not logs(tmp_path), "there is no log of a commit"


def logs(folder: Path) -> list[Path]:
    return [*folder.rglob("*.json"), *folder.rglob("*.jsonl")]


@pytest.mark.parametrize("name", [pytest.param(name, marks=marks(name)) for name in SINKS])
@settings(max_examples=40)
@given(data=st.data())
def test_values_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, name: str, data: st.DataObject) -> None:
    cells = table.SINKS[name]
    nested = cells.get(ARRAYS) != START
    simple, kind, values = data.draw(columns(nested).filter(lambda column: table.takes(cells, column[0], column[1])))
    folder = tmp_path_factory.mktemp("values") / "t"
    if any(BAD in table.words(cells, *leaf) for value in values for leaf in leaves(simple, value)):
        with pytest.raises(DataError):
            SINKS[name](folder, *batch_of(kind, values))
        assert not logs(folder), "there is no log of a commit"
    else:
        assert SINKS[name](folder, *batch_of(kind, values)) == values


@pytest.mark.parametrize("form", ["delta", "json"])
def test_a_row_with_odd_bytes_is_put_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    monkeypatch.setenv(STATES, str(tmp_path / "states"))
    schema, batch = batch_of(T.ArrayType(T.StringType()), [[b"a"], [b"b", b"M\xf6hre"], None])
    target = DeltaTarget(tmp_path / "t") if form == "delta" else FilesTarget(tmp_path / "t", form)
    kit = BadRowsKit(target, schema, partition_by="")
    kit.driver().claim()
    kit.driver().commit([kit.driver().write_batches(0, iter([batch]))], 0)
    kit.settle(0)
    assert target.ids() == [0, 2]
    (bad,) = kit.found()
    assert bad["reason"] == "column 'v.element' has a text that is not UTF-8"
    assert json.loads(bad["position"]) == {"partition": 0, "row": 1}
    assert json.loads(bad["raw"]) == {"id": 1, "v": ["b", repr(b"M\xf6hre")]}


@pytest.mark.parametrize("kind", [T.StringType(), T.ArrayType(T.StringType())])
def test_a_key_that_is_not_utf8_is_refused_before_the_merge(tmp_path: Path, kind: T.DataType) -> None:
    """Two keys of other bytes would be one text for delta-rs."""
    text = isinstance(kind, T.StringType)
    schema, batch = batch_of(kind, [value if text else [value] for value in (b"a", b"M\xf6hre", b"M\xfchre")])
    with pytest.raises(DataError, match="UTF-8"):
        committed(DeltaTarget(tmp_path / "t"), schema, batch, mode="upsert", key="v" if text else "id")
