"""What the tests of `files` share: rows, files of each format, and a source that is read whole."""

import json
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from spark_ext.schemas.ddl import columns
from spark_ext.sources.contract import BadRow, Channel, ChannelSource, Limit
from spark_ext.sources.files.orc import _has_times, _wraps_times
from spark_ext.sources.files.source import Files

DDL = "id bigint, word string, at timestamp"
SCHEMA = columns(DDL)
START = datetime(2024, 1, 1, tzinfo=timezone.utc)


def table(first: int, rows: int) -> pa.Table:
    return pa.table(
        {
            "id": pa.array(range(first, first + rows), pa.int64()),
            "word": pa.array([None if n % 7 == 0 else f"wörd {n}" for n in range(first, first + rows)], pa.string()),
            "at": pa.array(
                [START.replace(microsecond=n % 1_000_000) for n in range(first, first + rows)],
                pa.timestamp("us", "UTC"),
            ),
        }
    )


def needs_newer_pyarrow(rows: pa.Table) -> bool:
    """Whether `files` refuses this pyarrow for these rows in ORC."""
    return any(_has_times(field.type) for field in rows.schema) and _wraps_times()


def write(path: Path, rows: pa.Table, kind: str, header: bool = False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "parquet":
        pq.write_table(rows, path, row_group_size=5)
        return
    if kind == "orc":
        write_orc(path, rows)
        return
    if kind == "avro":
        write_avro(path, rows)
        return
    lines = ["id,word,at"] if header else []
    for row in rows.to_pylist():
        stamp = row["at"].isoformat()
        if kind == "csv":
            lines.append(f"{row['id']},{row['word'] or ''},{stamp}")
        else:
            lines.append(json.dumps({**row, "at": stamp, "more": [1]}))
    # The last line of some files has no end, as editors leave it.
    path.write_text("\n".join(lines) + ("\n" if lines and rows.num_rows % 2 else ""), encoding="utf-8")


AVRO_SCHEMA = {
    "type": "record",
    "name": "row",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "word", "type": ["null", "string"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    ],
}


def write_avro(path: Path, rows: pa.Table, codec: str = "deflate", sync_interval: int = 100) -> None:
    """Rows in blocks of a few, about as many bytes as `sync_interval` each."""
    with path.open("wb") as out:
        fastavro.writer(out, AVRO_SCHEMA, rows.to_pylist(), codec=codec, sync_interval=sync_interval)


def write_orc(path: Path, rows: pa.Table, compression: str = "uncompressed") -> None:
    """Rows in stripes as small as Arrow makes them: of about a thousand rows."""
    if needs_newer_pyarrow(rows):
        pytest.skip("this pyarrow reads times of ORC files wrongly, and is refused for them")
    orc.write_table(rows, path, batch_size=1024, stripe_size=1024, compression=compression)


def options(path: Path, **more: str) -> dict[str, str]:
    return {"uid": "files-test", "path": str(path), **more}


def source(path: Path, schema: str | StructType | None = None, **more: str) -> Files:
    made = Files(options(path, **more))
    declared = columns(schema) if isinstance(schema, str) else schema
    made.declared = declared or made.schema()
    return made


def opened(path: Path, schema: str | StructType | None = None, **more: str) -> tuple[Files, Channel]:
    made = source(path, schema, **more)
    (channel,) = made.discover()
    return made, channel


def read_all(made: ChannelSource) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for channel in made.discover():
        at = channel.begin
        step = made.advance(channel, at, Limit())
        assert step.finished
        for batch in made.read(Channel(channel.id, None, channel.data), at, step.end):
            rows += batch.to_pylist()
    return rows


def ids_in(made: ChannelSource, channel: Channel, low: int, high: int) -> list[int]:
    return [n for batch in made.read(channel, low, high) for n in batch["id"].to_pylist()]


def steps(made: ChannelSource, rows: int) -> list[list[int]]:
    """The ids of each step of the only file under a limit of rows, which counts those that are read."""
    (channel,) = made.discover()
    at, found = channel.begin, []
    while True:
        step = made.advance(channel, at, Limit(rows=rows))
        found.append(ids_in(made, channel, at, step.end))
        assert step.rows == len(found[-1])
        if step.finished:
            return found
        at = step.end


def read_bad(made: ChannelSource) -> tuple[list[dict[str, Any]], list[BadRow]]:
    bad: list[BadRow] = []
    made._collect = bad.append
    return read_all(made), bad


def elsewhere(code: str, *arguments: str) -> list[str]:
    """The lines that a process of its own prints, which a damaged file may not end."""
    ran = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran
    return ran.stdout.splitlines()


FUZZ = """
import random, sys
from pathlib import Path
from spark_ext.errors import DataError, SparkExtError
from tests.sources.files.files_kit import read_all, source
first, last, tail = map(int, sys.argv[2:5])
path = Path(sys.argv[1])
data, refused = path.read_bytes(), 0
for seed in range(first, last):
    pick, other = random.Random(seed), bytearray(data)
    for _ in range(pick.randint(1, 3)):
        # Often in the header and the footer, on which the rest depends.
        at = pick.choice([pick.randrange(len(data)), pick.randrange(300), len(data) - 1 - pick.randrange(tail)])
        other[at] = pick.randrange(256)
    path.write_bytes(other if pick.random() < 0.9 else other[: pick.randrange(len(other))])
    for ddl in sys.argv[5:]:
        try:
            read_all(source(path, ddl or None))
        except SparkExtError as error:
            assert path.name in str(error), seed
            refused += isinstance(error, DataError)
print(refused)
"""


def fuzzed(path: Path, *ddls: str, seeds: range = range(60), tail: int = 300) -> int:
    """How often damaged copies of a file are refused; none ends the process."""
    return int(elsewhere(FUZZ, str(path), *map(str, (seeds.start, seeds.stop, tail)), *ddls)[-1])


sizes = st.lists(st.sampled_from([0, 1, 4, 5, 6, 23, 60]), min_size=0, max_size=6)
