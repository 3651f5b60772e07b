"""The price of a consumer that waits: CPU of the JVM and of all workers, with one and with several idle consumers.

The producer writes some rows and then is silent; what is measured begins when everybody has read them. Rounds alternate
between the two numbers of consumers, and the difference is that of the consumers alone.
"""

from __future__ import annotations

import time

from pyspark.sql import SparkSession

import spark_ext as sx
from benchmarks._figures import Aim, Figure, Figures, Sample, beside
from benchmarks._spark import cpu_seconds, session, until, warm_up, workplace

ROUNDS = 3
FEW, MANY = 1, 5
ROWS = 1_000
WARM_S = 5.0
WINDOW_S = 20.0


def run(rounds: int = ROUNDS) -> Figures:
    with session("idle_consumer") as spark:
        warm_up(lambda: _share(spark, FEW))
        used = beside((FEW, MANY), rounds, lambda consumers: _share(spark, consumers))
    few, many = (Sample.of(used[consumers], "% of a core") for consumers in (FEW, MANY))
    yield Figure(
        "idle_consumer",
        f"share of a core that an idle consumer of an exchange takes: ({MANY} - {FEW} consumers) / {MANY - FEW}",
        (many.median - few.median) / (MANY - FEW) / 100, Aim("<=", 0.02),
        {f"{FEW} consumer": few, f"{MANY} consumers": many}, {"window, s": WINDOW_S},
    )  # fmt: skip


def _share(spark: SparkSession, consumers: int) -> float:
    """CPU time of all processes per second, %."""
    with workplace() as folder:
        # All rows at once; the next one would come after a day.
        reader = spark.readStream.format("datagen").options(uid="in", rows=ROWS, channels=1)
        silent = spark.readStream.format("datagen").options(uid="silent", rows_per_second=1e-5, channels=1).load()
        job = sx.Job(spark, "bench", state=folder / "state")
        exchange = job.exchange("rows", partitions=4)
        job.add("producer", exchange.write(reader.load().union(silent)))
        for number in range(consumers):
            job.add(f"consumer-{number}", exchange.read(f"in-{number}").writeStream.format("noop"))
        job.start()
        try:
            names = [f"consumer-{number}" for number in range(consumers)]
            until(lambda: min(job.snapshot().query(name).rows for name in names) >= ROWS, "all have read the rows", job)
            time.sleep(WARM_S)
            begin, then = cpu_seconds(), time.monotonic()
            time.sleep(WINDOW_S)
            return 100 * (cpu_seconds() - begin) / (time.monotonic() - then)
        finally:
            job.stop(30)
