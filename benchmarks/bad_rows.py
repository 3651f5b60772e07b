"""What it costs to collect bad rows where there are none: a CSV file read with `quarantine` and with `fail`.

The rows are read by the reader of a task, in this process, in pairs whose sides take turns to be first; the figure
is the median of the ratios of the pairs' CPU times, which other load on the machine changes least. What a file costs in
which one line in ten thousand is bad is measured beside it, and what it costs to plan and read files whose columns were
inferred before, or bad files put aside. Likewise for tasks of sinks: `delta_2pc` looks for nulls,
`files_2pc` and `http_2pc` for times and texts that JSON does not have, `kafka_2pc` at what it checks anyway; none of
these tasks reaches a server. A task of `postgres_2pc` copies into a staging table of a private server, if bad rows are
collected each part behind a savepoint: its rates are by the clock, as the server works too.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path

import pyarrow as pa
from pyspark.sql.types import StructType

from benchmarks._figures import Aim, Figure, Figures, Sample, beside, in_pairs
from benchmarks._spark import workplace
from benchmarks._targets import durable_server
from spark_ext.bad_rows.collector import Destination
from spark_ext.bad_rows.names import key_of
from spark_ext.model.commits import Claim, Task
from spark_ext.model.identity import Identity
from spark_ext.model.offsets import Range, SourceOffset
from spark_ext.schemas.ddl import columns
from spark_ext.sinks.contract import TwoPhaseCommitSink
from spark_ext.sinks.delta_2pc import DeltaTwoPhaseCommit
from spark_ext.sinks.files_2pc.sink import FilesTwoPhaseCommit
from spark_ext.sinks.http_2pc.sink import HttpTwoPhaseCommit
from spark_ext.sinks.kafka_2pc.sink import KafkaTwoPhaseCommit
from spark_ext.sinks.postgres_2pc.sink import PostgresTwoPhaseCommit
from spark_ext.sinks.runtime.writer import write_task
from spark_ext.sources.contract import Limit
from spark_ext.sources.files.source import Files
from spark_ext.sources.runtime.reader import ChannelReader, ReadTask

ROUNDS = 15
ROWS = 1_000_000
PAIRS = 3  # pairs of a sink in a round, which are shorter than those of the source
FILES = 10
BAD_EVERY = 10_000
ON_BAD_ROW = ("fail", "quarantine")
SIDES = {"fail": ("good", "fail"), "quarantine": ("good", "quarantine"), "one in 10,000": ("bad", "quarantine")}
SINK_ROWS, BATCH = 1_000_000, 10_000
HTTP_ROWS = 100_000  # fewer, as each is made into text in Python

SINKS: dict[str, Callable[[Path, str], TwoPhaseCommitSink]] = {
    "delta_2pc": lambda folder, on_bad_row: DeltaTwoPhaseCommit(
        {"uid": "out", "path": str(folder / "table"), "on_bad_row": on_bad_row}
    ),
    "files_2pc": lambda folder, on_bad_row: FilesTwoPhaseCommit(
        {"uid": "out", "path": str(folder / "files"), "format": "json", "on_bad_row": on_bad_row}
    ),
    "kafka_2pc": lambda folder, on_bad_row: KafkaTwoPhaseCommit(
        {"uid": "out", "bootstrap_servers": "127.0.0.1:1", "topic": "t", "staging": str(folder / "staging"),
         "on_bad_row": on_bad_row}
    ),
    "http_2pc": lambda folder, on_bad_row: HttpTwoPhaseCommit(
        {"uid": "out", "url": "http://127.0.0.1:1", "outbox": str(folder / "outbox"), "on_bad_row": on_bad_row}
    ),
}  # fmt: skip


def run(rounds: int = ROUNDS) -> Figures:
    with workplace() as folder:
        for name, every in (("good", ROWS + 1), ("bad", BAD_EVERY)):
            (folder / name).mkdir()
            lines = (f"{n if (n + 1) % every else 'x'},{n * 0.5},key-{n % 1000}\n" for n in range(ROWS))
            (folder / name / "0.csv").write_text("".join(lines))
        rates = _beside(tuple(SIDES), rounds, lambda side: _rate(folder, *SIDES[side]))
    samples = {side: Sample.of(values, "M rows/s") for side, values in rates.items()}
    yield Figure(
        "bad_rows", "rows per second of CPU from a CSV file without bad rows: collecting them / failing on them",
        _ratio(rates), Aim(">=", 0.98), samples, {"rows": ROWS},
    )  # fmt: skip
    yield from _whole_files(rounds)
    for sink in SINKS:
        rates = _beside(ON_BAD_ROW, PAIRS * rounds, partial(_rate_of_sink, sink))
        yield _figure_of_sink(sink, rates, "second of CPU")
    yield _postgres(PAIRS * rounds)


def _whole_files(rounds: int) -> Figures:
    """Files that are planned and read, with columns that were inferred before, and with bad files put aside."""
    with workplace() as folder:
        (folder / "in").mkdir()
        for number in range(FILES):
            rows = (f"{n},{n * 0.5},key-{n % 1000}\n" for n in range(ROWS // FILES))
            (folder / "in" / f"{number}.csv").write_text("id,value,tag\n" + "".join(rows))
        kept = {"infer": "true", "schema_location": str(folder / "kept.json")}
        sides = {"declared": {}, "inferred": kept, "aside": {"on_bad_file": "quarantine"}}
        rates = _beside(tuple(sides), rounds, lambda side: _rate_of_files(folder / "in", sides[side]))
    for name, what in (("inferred", "columns inferred before"), ("aside", "bad files put aside")):
        yield Figure(
            f"bad_rows_{name}", f"rows per second of CPU of CSV files, planned and read: {what} / columns declared",
            statistics.median(in_pairs(rates[name], rates["declared"])), Aim(">=", 0.98),
            {side: Sample.of(values, "M rows/s") for side, values in rates.items()}, {"rows": ROWS},
        )  # fmt: skip


def _rate_of_files(place: Path, given: Mapping[str, str]) -> float:
    """Millions of rows per second of CPU."""
    options = {"uid": "in", "path": str(place), "header": "true", "on_bad_row": "quarantine", **given}
    began = time.process_time()
    source = Files(options)
    source.declared = source.schema() if "infer" in given else columns("id bigint, value double, tag string")
    source.resume([], frozenset())
    rows = 0
    for channel in list(source.discover()):
        end = source.advance(channel, channel.begin, Limit()).end
        rows += sum(batch.num_rows for batch in source.read(channel, channel.begin, end))
    spent = time.process_time() - began
    if rows != ROWS:
        raise AssertionError(f"{rows} rows were read")
    return ROWS / spent / 1e6


def _beside(sides: Sequence[str], rounds: int, measure: Callable[[str], float]) -> dict[str, list[float]]:
    """Behind a round that fills caches."""
    beside(sides, 1, measure)
    return beside(sides, rounds, measure)


def _ratio(rates: Mapping[str, Sequence[float]]) -> float:
    return statistics.median(in_pairs(rates["quarantine"], rates["fail"]))


def _postgres(pairs: int) -> Figure:
    """Rows per second of a task of `postgres_2pc` that copies into a staging table."""
    with durable_server() as server:

        def rate(on_bad_row: str) -> float:
            database = server.database()
            database.run("CREATE TABLE rows (id bigint, at timestamptz, tag text)")
            options = {"uid": "out", "dsn": database.dsn, "table": "rows", "on_bad_row": on_bad_row}
            with workplace() as folder:
                sink = PostgresTwoPhaseCommit(options)
                sink.claim(Claim("out", "bench", "bench", 1, 1))
                found = _rate_of_task(folder, sink, "postgres_2pc", time.monotonic)
            server.drop(database)
            return found

        return _figure_of_sink("postgres_2pc", _beside(ON_BAD_ROW, pairs, rate), "second")


def _figure_of_sink(sink: str, rates: Mapping[str, Sequence[float]], per: str) -> Figure:
    return Figure(
        f"bad_rows_{sink.partition('_')[0]}",
        f"rows per {per} of a task of {sink} without bad rows: collecting them / failing on them",
        _ratio(rates),
        Aim(">=", 0.98),
        {side: Sample.of(values, "M rows/s") for side, values in rates.items()},
        {"rows": _rows(sink)},
    )


def _rate_of_sink(name: str, on_bad_row: str) -> float:
    with workplace() as folder:
        return _rate_of_task(folder, SINKS[name](folder, on_bad_row), name, time.process_time)


def _rate_of_task(folder: Path, sink: TwoPhaseCommitSink, name: str, clock: Callable[[], float]) -> float:
    """Millions of rows per second of a clock."""
    schema = _schema(name)
    task = Task("out", "q", 0, 0, 0, 1, 1)
    identity = Identity(state=str(folder / "state"), incarnation=1, lineage=1)
    batches = _batches(name)
    began = clock()
    written = write_task(sink, schema, iter(batches), task, identity)
    spent = clock() - began
    if written.rows != _rows(name) or written.bad is not None:
        raise AssertionError(f"{written.rows} rows were written")
    return written.rows / spent / 1e6


def _rows(sink: str) -> int:
    return HTTP_ROWS if sink == "http_2pc" else SINK_ROWS


def _schema(name: str) -> StructType:
    return columns(
        "value string, timestamp timestamp" if name == "kafka_2pc" else "id bigint, at timestamp, tag string"
    )


@cache
def _batches(name: str) -> list[pa.RecordBatch]:
    """Of a sink; made once, as that takes longer than to write them."""
    return [_batch_of(_schema(name), start) for start in range(0, _rows(name), BATCH)]


def _batch_of(schema: StructType, start: int) -> pa.RecordBatch:
    numbers = pa.array(range(start + 1, start + BATCH + 1), pa.int64())
    made = {
        "id": numbers,
        "at": numbers.cast(pa.timestamp("us", "UTC")),
        "timestamp": pa.array([1_000_000 + start] * BATCH, pa.timestamp("us", "UTC")),
        "tag": pa.array([f"key-{n % 1000}" for n in range(BATCH)]),
        "value": pa.array([f"value-{n}" for n in range(BATCH)]),
    }
    return pa.RecordBatch.from_arrays([made[name] for name in schema.names], names=schema.names)


def _rate(folder: Path, name: str, on_bad_row: str) -> float:
    """Millions of rows per second of CPU."""
    schema = columns("id bigint, value double, tag string")
    source = Files({"uid": "in", "path": str(folder / name), "on_bad_row": on_bad_row})
    reader = ChannelReader(source, schema)
    [channel] = source.discover()
    end = SourceOffset("in", 1)
    state = str(folder / "state")
    to = Destination(state, str(folder / "checkpoint"), "in", f"{state}/table", 1, key_of(end), 1)
    piece = Range(channel.id, channel.data, 0, channel.data[0])
    task = ReadTask((piece,), bad_rows=to if on_bad_row == "quarantine" else None)
    _logged(folder / "checkpoint", end)
    began = time.process_time()
    rows = sum(batch.num_rows for batch in reader.read(task))
    spent = time.process_time() - began
    if rows < ROWS * 0.99:
        raise AssertionError(f"{rows} rows were read")
    return ROWS / spent / 1e6


def _logged(checkpoint: Path, end: SourceOffset) -> None:
    """A checkpoint with one epoch, in which a task that runs outside of Spark finds its number."""
    (checkpoint / "offsets").mkdir(parents=True, exist_ok=True)
    (checkpoint / "offsets" / "0").write_text("\n".join(["v1", "{}", json.dumps(end.to_json())]))
