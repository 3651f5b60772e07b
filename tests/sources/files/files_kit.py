"""What the tests of `files` share: rows, files of each format, and a source that is read whole."""

from __future__ import annotations

import json
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
from spark_ext.sources.contract import Channel, ChannelSource, Limit
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
    text = "\n".join(lines) + ("\n" if lines and rows.num_rows % 2 else "")
    path.write_text(text, encoding="utf-8")


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


def read_all(made: ChannelSource) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for channel in made.discover():
        at = channel.begin
        step = made.advance(channel, at, Limit())
        assert step.finished
        for batch in made.read(Channel(channel.id, None, channel.data), at, step.end):
            rows += batch.to_pylist()
    return rows


sizes = st.lists(st.sampled_from([0, 1, 4, 5, 6, 23, 60]), min_size=0, max_size=6)
