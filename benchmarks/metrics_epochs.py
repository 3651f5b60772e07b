"""Small epochs of a job with all metrics on against those of the same job with none: what measuring costs.

On: `/metrics` of the driver's port is scraped five times a second, some fifty times as often as Prometheus does, and
spans and metrics are exported by OpenTelemetry to an HTTP server on loopback. Both sides run the `steps` source into
`delta_2pc`, alternately. Also: what a row costs the thread that records it, and a scrape, each measured alone.
"""

from __future__ import annotations

import http.server
import os
import threading
import time
import urllib.request
from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import spark_ext as sx
from benchmarks._figures import Aim, Figure, Sample
from benchmarks._operators import steps
from benchmarks._spark import committed_at, session, workplace
from spark_ext.ledger.schema import EpochRow
from spark_ext.metrics import endpoint
from spark_ext.metrics.job_metrics import JobMetrics
from spark_ext.metrics.prometheus import Exposition
from tests.servers.ports import free_ports

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROUNDS = 7
SIDES = ("off", "on")
SIZE = {"rows": 500, "steps": 45}
WARM = 5
CHANNELS = 2
SCRAPE_EVERY = 0.2
"""Pause between two scrapes, s."""

ALLOWED_MS = 1.0
"""Maximum time that measuring may add to an epoch."""

QUERIES = 500
"""Of the job whose scrape is measured alone."""


def run(rounds: int = ROUNDS) -> list[Figure]:
    """Measure this many rounds."""
    periods: dict[str, list[float]] = {side: [] for side in SIDES}
    scrapes: list[float] = []
    os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = _collector()
    with session("metrics_epochs") as spark:
        _period(spark, "on", scrapes)  # compiles
        scrapes.clear()
        for number in range(rounds):
            for side in SIDES if number % 2 else reversed(SIDES):
                periods[side].append(1000 * _period(spark, side, scrapes))
    off, on = (Sample.of(periods[side], "ms") for side in SIDES)
    added = Sample.of([with_it - without for without, with_it in zip(*periods.values(), strict=True)], "ms")
    return [
        Figure(
            "metrics_epochs",
            "metrics_epochs",
            f"time per small epoch: metrics on / off; the aim is the ratio at {ALLOWED_MS:g} ms more",
            on.median / off.median,
            Aim("<=", 1 + ALLOWED_MS / off.median),
            {"off": off, "on": on, "added in each pair": added},
            {
                "epochs per run": SIZE["steps"] - WARM,
                "a scrape of this job, ms": Sample.of(scrapes, "ms").to_json(),
                **_alone(),
            },
        )
    ]


def _alone() -> dict[str, Any]:
    """What a row and a scrape cost in a job of many queries."""
    metrics = JobMetrics("bench")
    row = EpochRow(
        query="q0",
        query_id="id",
        epoch=0,
        lineage=1,
        incarnation=1,
        input_rows=10,
        committed_at=datetime.now(timezone.utc),
        duration_ms=100,
        offsets=None,
    )
    rows = [replace(row, query=f"q{number % QUERIES}", epoch=number // QUERIES) for number in range(50 * QUERIES)]
    begin = time.perf_counter()
    for one in rows:
        metrics.tap(one)
    taken = time.perf_counter() - begin
    exposition = Exposition(lambda: [metrics])
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        exposition.text()
        times.append(1000 * (time.perf_counter() - begin))
    return {
        "a row, microseconds": round(1e6 * taken / len(rows), 1),
        f"a scrape of {QUERIES} queries, ms": Sample.of(times, "ms").to_json(),
    }


def _period(spark: SparkSession, side: str, scrapes: list[float]) -> float:
    """Mean time from commit to commit, s."""
    (port,) = free_ports(1)
    settings: dict[str, Any] = {"metrics_port": port, "opentelemetry": True} if side == "on" else {}
    with workplace() as folder:
        frame = steps(spark, uid="in", channels=CHANNELS, **SIZE)
        writer = frame.writeStream.format("delta_2pc").option("uid", "out").option("path", str(folder / "table"))
        job = sx.Job(spark, "bench", state=folder / "state", **settings).add("q", writer)
        job.start()
        while not job.wait(SCRAPE_EVERY):
            if side == "on":
                begin = time.perf_counter()
                urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read()
                scrapes.append(1000 * (time.perf_counter() - begin))
        job.await_termination()
        endpoint.close_all()
        checkpoint, last = folder / "state" / "queries" / "q" / "checkpoint", SIZE["steps"] - 1
        # The epoch before the first one that counts: the time begins with its commit.
        return (committed_at(checkpoint, last) - committed_at(checkpoint, WARM - 1)) / (last - WARM + 1)


def _collector() -> str:
    """The address of an HTTP server that takes what is posted, until the process ends, and forgets it."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Nobody reads it."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"
