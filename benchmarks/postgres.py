"""`postgres_2pc` against Spark's JDBC writer and a bare binary COPY, into one private server on loopback.

The rows (two whole numbers, a time, a double) come from Spark's own `rate-micro-batch`. The JDBC writer runs in
`foreachBatch` with its rewritten batch inserts on; it is not exactly once. The bare COPY sends a stream that was made
before through one connection: what the server takes when nobody makes the rows. The time is that of whole epochs; the
first one, in which workers start, does not count.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from benchmarks._figures import Aim, Figure, Sample
from benchmarks._spark import run_epochs, session, workplace
from spark_ext.spark._jars import session_jars
from tests.servers.postgres import Database, PostgresServer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

ROUNDS = 3
ROWS = 1_000_000
EPOCHS = 2
"""Large epochs that count."""
SMALL_ROWS = 100
SMALL_EPOCHS = 60
WARM = 5
"""Small epochs that do not count."""
DRIVER = "org.postgresql:postgresql:42.7.8"
TABLE = "CREATE TABLE rows (id bigint, key int, ts timestamptz, value double precision)"

WAYS = ("postgres_2pc", "postgres_2pc prepared", "JDBC")


def run(rounds: int = ROUNDS) -> list[Figure]:
    """Measure so many rounds."""
    rates: dict[str, list[float]] = {way: [] for way in (*WAYS, "COPY")}
    small: dict[str, list[float]] = {way: [] for way in WAYS}
    jars = ":".join(map(str, session_jars(DRIVER, {})))
    # The JDBC driver's message of a batch that was stopped holds all of it: Spark's regex then needs the stack.
    conf = {"spark.driver.extraClassPath": jars, "spark.driver.extraJavaOptions": "-Xss64m"}
    with session("postgres", conf) as spark, _server() as server:
        for round_ in range(rounds):
            rates["COPY"].append(_bare_copy(server))
            for way in WAYS:
                rate = _large(spark, server, way)
                if round_ or rounds == 1:  # the first round compiles
                    rates[way].append(rate)
                small[way] += _small(spark, server, way)
    rate = {way: Sample.of(values, "M rows/s") for way, values in rates.items()}
    latency = {way: Sample.of(values, "ms") for way, values in small.items()}
    best = max(WAYS[:2], key=lambda way: rate[way].median)
    sizes = {"rows per epoch": ROWS, "epochs": EPOCHS, "rounds": rounds}
    percents = {
        f"{way}, p{percent}": round(float(np.percentile(sample.values, percent)), 1)
        for way, sample in latency.items()
        for percent in (50, 99)
    }
    return [
        Figure(
            "postgres_throughput",
            "postgres",
            f"rows per second: {best} / Spark's JDBC writer",
            rate[best].median / rate["JDBC"].median,
            Aim(">=", 3),
            rate,
            sizes,
        ),
        Figure(
            "postgres_copy",
            "postgres",
            f"rows per second: {best} / bare binary COPY of ready bytes, one connection",
            rate[best].median / rate["COPY"].median,
            Aim(">=", 0.6),
            {best: rate[best], "COPY": rate["COPY"]},
            sizes,
        ),
        Figure(
            "postgres_commit",
            "postgres",
            "addBatch of an epoch of 100 rows: postgres_2pc / Spark's JDBC writer",
            latency["postgres_2pc"].median / latency["JDBC"].median,
            Aim("<=", 1),
            latency,
            {"rows per epoch": SMALL_ROWS, "epochs per round": SMALL_EPOCHS - WARM, "ms": percents},
        ),
    ]


@contextmanager
def _server() -> Iterator[PostgresServer]:
    # Durable, as a server that matters is.
    server = PostgresServer({"fsync": "on", "full_page_writes": "on", "max_wal_size": "8GB"})
    try:
        yield server.create()
    finally:
        server.close()


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
    with _table(server) as database, workplace() as folder:
        reports = run_epochs(_writer(spark, database, way, ROWS), folder / "checkpoint", EPOCHS)
        counted = [report for report in reports if report["batchId"] >= 1]
        (there,) = database.column("SELECT count(*) FROM rows")
        assert there >= (EPOCHS + 1) * ROWS, f"{way} wrote {there} rows"
        seconds = sum(report["durationMs"]["triggerExecution"] for report in counted) / 1000
        return EPOCHS * ROWS / seconds / 1e6


def _small(spark: SparkSession, server: PostgresServer, way: str) -> list[float]:
    """Milliseconds of each epoch's tasks and commit."""
    with _table(server) as database, workplace() as folder:
        writer = _writer(spark, database, way, SMALL_ROWS)
        reports = run_epochs(writer, folder / "checkpoint", SMALL_EPOCHS - 1)
        return [float(report["durationMs"]["addBatch"]) for report in reports if report["batchId"] >= WARM]


def _writer(spark: SparkSession, database: Database, way: str, rows: int) -> DataStreamWriter:
    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows).load()
    frame = stream.selectExpr(
        "value AS id", "cast(value % 1000 AS int) AS key", "timestamp AS ts", "value * 0.5 AS value"
    )
    frame = frame.withColumn("value", frame["value"].cast("double"))
    if way == "JDBC":
        return frame.writeStream.foreachBatch(_jdbc(database))
    options = {"uid": "out", "table": "rows", "dsn": database.dsn, "prepared": str(way.endswith("prepared")).lower()}
    return frame.writeStream.format("postgres_2pc").options(**options)


def _jdbc(database: Database) -> Callable[[DataFrame, int], Any]:
    options = {
        "url": f"jdbc:postgresql://127.0.0.1:{database.server.port}/{database.name}?reWriteBatchedInserts=true",
        "dbtable": "rows",
        "user": database.options["user"],
        "password": database.options["password"],
        "batchsize": "10000",
    }
    return lambda frame, _: frame.write.format("jdbc").options(**options).mode("append").save()


def _bare_copy(server: PostgresServer) -> float:
    """Millions of rows per second of a stream that was encoded before."""
    from spark_ext.sinks._postgres_copy import HEADER, TRAILER, encode
    from spark_ext.sinks._postgres_types import Column

    numbers = np.arange(ROWS)
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
    stream = [HEADER, *encode(batch, columns), TRAILER]
    with _table(server) as database, database.connect() as connection:
        start = time.perf_counter()
        with connection.cursor() as cursor, cursor.copy("COPY rows FROM STDIN WITH (FORMAT binary)") as copy:
            for piece in stream:
                copy.write(piece)
        return ROWS / (time.perf_counter() - start) / 1e6
