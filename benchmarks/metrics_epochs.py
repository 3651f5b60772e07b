"""Small epochs of a job with all metrics on against those of the same job with none: what measuring costs.

On: `/metrics` of the driver's port is scraped five times a second, some fifty times as often as Prometheus does, and
spans and metrics are exported by OpenTelemetry to an HTTP server on loopback. Both sides run the `steps` source into
`delta_2pc`, alternately. Also: what a row costs the thread that records it, and a scrape, each measured alone.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from benchmarks._figures import Aim, Figure, Figures, Sample
from benchmarks._spark import session
from benchmarks._watched import periods, samples
from spark_ext.ledger.schema import EpochRow
from spark_ext.metrics.exporters import Exposition
from spark_ext.metrics.job_metrics import JobMetrics
from tests.servers.handler import Handler, InThread

ROUNDS = 7
SIDES = ("off", "on")
EPOCHS = 40  # of a run that count
SCRAPE_EVERY = 0.2  # pause between two scrapes, s
ALLOWED_MS = 1.0  # maximum time that measuring may add to an epoch
QUERIES = 500  # of the job whose scrape is measured alone


def run(rounds: int = ROUNDS) -> Figures:
    scrapes: list[float] = []
    with InThread(_Collector) as collector, session("metrics_epochs") as spark:
        os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"http://127.0.0.1:{collector.server.server_port}"
        found = periods(spark, SIDES, rounds, _settings, epochs=EPOCHS, every=SCRAPE_EVERY, scraped=scrapes.append)
    sides = samples(found, *SIDES)
    off, on = (sides[side].median for side in SIDES)
    yield Figure(
        "metrics_epochs", f"CPU time per small epoch: metrics on / off; the aim is the ratio at {ALLOWED_MS:g} ms more",
        on / off, Aim("<=", 1 + ALLOWED_MS / off), sides,
        {"epochs per run": EPOCHS, "a scrape of this job, ms": Sample.of(scrapes, "ms").to_json(), **_alone()},
    )  # fmt: skip


def _settings(side: str, folder: Path, port: int) -> dict[str, Any]:
    return {"metrics_port": port, "opentelemetry": True} if side == "on" else {}


def _alone() -> dict[str, Any]:
    """What a row and a scrape cost in a job of many queries."""
    metrics = JobMetrics("bench")
    row = EpochRow(
        query="q0", query_id="id", epoch=0, lineage=1, incarnation=1, input_rows=10,
        committed_at=datetime.now(timezone.utc), duration_ms=100, offsets=None,
    )  # fmt: skip
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


class _Collector(Handler):
    """Takes what is posted, and forgets it."""

    def do_POST(self) -> None:
        self.body()
        self.answer(200, b"")
