"""`postgres_2pc` against Spark's JDBC writer and a bare binary COPY, into one private server on loopback.

The rows (two whole numbers, a time, a double) come from Spark's own `rate-micro-batch`. The JDBC writer runs in
`foreachBatch`, as is usual for streams; it is not exactly once. It is measured twice: with its defaults ("as it
comes"), and with the two settings that are known to make it fast (`reWriteBatchedInserts=true` of the driver, ten times
the `batchsize`). With its defaults it gets fewer rows, to keep the run short: its rate does not depend on their number,
as its epochs last for seconds.

The bare COPY sends a stream that was encoded before: the rate of the server if no time is spent on producing rows. One
connection is the yardstick; two at once show the limit of the server and of this machine's cores.

The time is that of whole epochs; the first one, in which workers start, is not counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from benchmarks._figures import Aim, Figure, Figures, Sample
from benchmarks._spark import run_epochs, session, workplace
from benchmarks._targets import durable_server
from spark_ext.spark.session.jars import session_jars
from tests.servers.postgres import Database, PostgresServer

ROUNDS = 3
ROWS = 4_000_000  # rows per large epoch; the small ones show the fixed cost of an epoch
SLOW_ROWS = 250_000  # rows per large epoch of the JDBC writer with its defaults
EPOCHS = 2  # number of large epochs that count
SMALL_ROWS = 100
SMALL_EPOCHS = 60
WARM = 5  # number of small epochs that do not count
DRIVER = "org.postgresql:postgresql:42.7.8"
TABLE = "CREATE TABLE rows (id bigint, key int, ts timestamptz, value double precision)"
STAGED, INLINE, PREPARED = "postgres_2pc", "postgres_2pc inline", "postgres_2pc prepared"
JDBC, TUNED = "JDBC as it comes", "JDBC tuned"
COPY_ROWS = 2_000_000
COPY, COPIES = "COPY", "COPY, two at once"
WAYS = (STAGED, INLINE, PREPARED, TUNED, JDBC)
SMALL = (STAGED, PREPARED, TUNED, JDBC)
OPTIONS = {STAGED: {}, INLINE: {"inline_size": "512m"}, PREPARED: {"prepared": "true"}}


def run(rounds: int = ROUNDS) -> Figures:
    rates: dict[str, list[float]] = {way: [] for way in (*WAYS, COPY, COPIES)}
    small: dict[str, list[float]] = {way: [] for way in SMALL}
    jars = ":".join(map(str, session_jars(DRIVER, {})))
    # The JDBC driver's message about a stopped batch contains all of it: Spark's regex then needs a large stack.
    conf = {"spark.driver.extraClassPath": jars, "spark.driver.extraJavaOptions": "-Xss64m"}
    with session("postgres", conf) as spark, durable_server() as server:
        for round_ in range(rounds):
            rates[COPY].append(_bare_copy(server, 1))
            rates[COPIES].append(_bare_copy(server, 2))
            for way in WAYS:
                rate = _large(spark, server, way)
                if round_ or rounds == 1:  # the first round compiles
                    rates[way].append(rate)
            for way in SMALL:
                small[way] += _small(spark, server, way)
    return _figures(
        {way: Sample.of(values, "M rows/s") for way, values in rates.items()},
        {way: Sample.of(values, "ms") for way, values in small.items()},
        rounds,
    )


def _figures(rate: Mapping[str, Sample], latency: Mapping[str, Sample], rounds: int) -> Figures:
    best = max((STAGED, INLINE, PREPARED), key=lambda way: rate[way].median)
    ours = {way: rate[way] for way in (STAGED, INLINE, PREPARED)}
    sizes = {"rows per epoch": ROWS, "of the JDBC writer as it comes": SLOW_ROWS, "epochs": EPOCHS, "rounds": rounds}
    percents = {
        f"{way}, p{percent}": round(float(np.percentile(sample.values, percent)), 1)
        for way, sample in latency.items()
        for percent in (50, 99)
    }
    throughput = [
        Figure(
            name, f"rows per second: {best} / {what}", rate[best].median / rate[other].median, Aim(">=", aim),
            {**ours, **{side: rate[side] for side in sides}}, sizes,
        )
        for name, what, other, sides, aim in (
            ("postgres_throughput", "Spark's JDBC writer as it comes", JDBC, (JDBC,), 3),
            ("postgres_throughput_tuned", "Spark's JDBC writer, tuned", TUNED, (TUNED,), 3),
            ("postgres_copy", "bare binary COPY of ready bytes, one connection", COPY, (COPY, COPIES), 0.6),
        )
    ]  # fmt: skip
    commit = Figure(
        "postgres_commit", f"addBatch of an epoch of {SMALL_ROWS} rows: postgres_2pc / Spark's JDBC writer, tuned",
        latency[STAGED].median / latency[TUNED].median, Aim("<=", 1), dict(latency),
        {"rows per epoch": SMALL_ROWS, "epochs per round": SMALL_EPOCHS - WARM, "ms": percents},
    )  # fmt: skip
    yield from throughput
    yield commit


@contextmanager
def _table(server: PostgresServer) -> Iterator[Database]:
    database = server.database()
    database.run(TABLE)
    try:
        yield database
    finally:
        server.drop(database)


def _large(spark: SparkSession, server: PostgresServer, way: str) -> float:
    """Millions of rows per second."""
    rows = SLOW_ROWS if way == JDBC else ROWS
    with _table(server) as database, workplace() as folder:
        reports = run_epochs(_writer(spark, database, way, rows), folder / "checkpoint", EPOCHS)
        counted = [report for report in reports if report["batchId"] >= 1]
        (there,) = database.column("SELECT count(*) FROM rows")
        assert there >= (EPOCHS + 1) * rows, f"{way} wrote {there} rows"
        seconds = sum(report["durationMs"]["triggerExecution"] for report in counted) / 1000
        return EPOCHS * rows / seconds / 1e6


def _small(spark: SparkSession, server: PostgresServer, way: str) -> list[float]:
    """Milliseconds of each epoch's tasks and commit."""
    with _table(server) as database, workplace() as folder:
        writer = _writer(spark, database, way, SMALL_ROWS)
        reports = run_epochs(writer, folder / "checkpoint", SMALL_EPOCHS - 1)
        return [float(report["durationMs"]["addBatch"]) for report in reports if report["batchId"] >= WARM]


def _writer(spark: SparkSession, database: Database, way: str, rows: int) -> DataStreamWriter:
    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows).load()
    # 0.5D: a plain 0.5 is a decimal, whose multiplication costs more than everything else in producing a row.
    frame = stream.selectExpr(
        "value AS id", "cast(value % 1000 AS int) AS key", "timestamp AS ts", "value * 0.5D AS value"
    )
    if way in (JDBC, TUNED):
        return frame.writeStream.foreachBatch(_jdbc(database, tuned=way == TUNED))
    options = {"uid": "out", "table": "rows", "dsn": database.dsn, **OPTIONS[way]}
    return frame.writeStream.format("postgres_2pc").options(**options)


def _jdbc(database: Database, *, tuned: bool) -> Callable[[DataFrame, int], Any]:
    url = f"jdbc:postgresql://127.0.0.1:{database.server.port}/{database.name}"
    options = {
        "url": f"{url}?reWriteBatchedInserts=true" if tuned else url,
        "driver": "org.postgresql.Driver",  # found also if its jar is not on the class path that the JVM began with
        "dbtable": "rows",
        "user": database.options["user"],
        "password": database.options["password"],
        **({"batchsize": "10000"} if tuned else {}),
    }
    return lambda frame, _: frame.write.format("jdbc").options(**options).mode("append").save()


def _bare_copy(server: PostgresServer, connections: int) -> float:
    """Millions of rows per second of a stream that was encoded before, sent through several connections at once."""
    stream = _encoded()
    with _table(server) as database, ExitStack() as opened:
        each = [opened.enter_context(database.connect()) for _ in range(connections)]
        with ThreadPoolExecutor(connections) as senders:
            start = time.perf_counter()
            list(senders.map(lambda connection: _send(connection, stream), each))
        return connections * COPY_ROWS / (time.perf_counter() - start) / 1e6


def _send(connection: psycopg.Connection[Any], stream: Sequence[Any]) -> None:
    with connection.cursor() as cursor, cursor.copy("COPY rows FROM STDIN WITH (FORMAT binary)") as copy:
        for piece in stream:
            copy.write(piece)


def _encoded() -> list[Any]:
    from spark_ext.sinks.postgres_2pc.copy import HEADER, TRAILER, encode
    from spark_ext.sinks.postgres_2pc.types import Column

    numbers = np.arange(COPY_ROWS)
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array(numbers),
            pa.array((numbers % 1000).astype(np.int32)),
            pa.array(numbers, pa.timestamp("us", "UTC")),
            pa.array(numbers * 0.5),
        ],
        names=["id", "key", "ts", "value"],
    )
    kinds = ("int8", "int4", "timestamptz", "float8")
    columns = [Column(name, kind, kind) for name, kind in zip(batch.schema.names, kinds, strict=True)]
    return [HEADER, *encode(batch, columns), TRAILER]
