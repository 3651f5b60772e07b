"""One real job with everything on: what Prometheus, the REST server and OpenTelemetry have agrees with its ledger."""

import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pyspark.sql import SparkSession
from pyspark.sql.functions import col, count, udf, window

import spark_ext as sx
from spark_ext.errors import ConfigurationError
from spark_ext.ledger import Ledger
from spark_ext.ledger.schema import CheckpointRow, EpochRow, ExecutionStateRow, FinishedRow, IncidentRow
from spark_ext.metrics import exporters, otel_setup
from spark_ext.model.lifecycle import State
from spark_ext.views.downtime import downtime
from spark_ext.views.status import read_status
from tests.metrics.jobs import BY_NAME
from tests.metrics.test_prometheus import parsed, scraped
from tests.servers.ports import free_ports
from tests.support.waiting import until

Scrape = dict[tuple[str, frozenset[tuple[str, str]]], float]


@dataclass
class Seen:
    """What was seen of the job from all sides."""

    state: Path
    port: int
    during: Scrape
    by_rest: Scrape
    after: Scrape
    spans: tuple[ReadableSpan, ...]
    otel: dict[str, float]
    spark_names: list[str]
    threads: list[str]
    later: Scrape  # of a second start

    def rows(self, row_type: Any) -> list[Any]:
        rows = {repr(row): row for row in Ledger(str(self.state)).table(row_type).rows() if row.incarnation == 1}
        return list(rows.values())


STAGES = "spark_ext_epoch_stage_seconds_total"


def total(scrape: Scrape, name: str, **labels: str) -> float:
    return sum(value for (found, of), value in scrape.items() if found == name and labels.items() <= dict(of).items())


def windows(spark: SparkSession, folder: Path) -> Any:
    """Counts per second of event time, by way of a function that fails once as a refused connection does."""
    flag = str(folder / "failed")

    @udf("long")
    def looked_up(seq):  # type: ignore[no-untyped-def]
        import os

        if seq == 250 and not os.path.exists(flag):  # noqa: PTH110
            with open(flag, "w"):
                pass
            raise ConnectionRefusedError(111, "Connection refused")
        return seq

    reader = spark.readStream.format("datagen")
    rows = reader.options(uid="in", rows=400, rows_per_second=400, max_rows_per_epoch=100).load()
    marked = sx.with_watermark(rows.where(looked_up("seq") >= 0), "ts", "1 second")
    counted = marked.groupBy(window("ts", "1 second")).agg(count("*").alias("rows"))
    return counted.select(col("window.start").alias("start"), "rows").writeStream


def made(spark: SparkSession, folder: Path, port: int) -> sx.Job:
    job = sx.Job(
        spark, "lab", state=folder / "state", metrics_port=port, opentelemetry=True, restart_backoff="10 ms",
        checkpoint_interval="500 ms",
    )  # fmt: skip
    writer = windows(spark, folder).format("delta_2pc").option("uid", "out").option("path", str(folder / "out"))
    return job.add("counts", writer)


@pytest.fixture(scope="module")
def seen(spark_of_process: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    spark, folder = spark_of_process, tmp_path_factory.mktemp("measured")
    patch = pytest.MonkeyPatch()
    exporter, reader = InMemorySpanExporter(), InMemoryMetricReader()
    tracer, meter = TracerProvider(shutdown_on_exit=False), MeterProvider([reader], shutdown_on_exit=False)
    tracer.add_span_processor(SimpleSpanProcessor(exporter))
    patch.setitem(otel_setup._made, "tracer", tracer)  # in place of those that the environment describes
    patch.setitem(otel_setup._made, "meter", meter)
    sx.register(spark)
    before = spark.conf.get("spark.sql.streaming.metricsEnabled")
    spark.conf.set("spark.sql.streaming.metricsEnabled", "true")
    (port,) = free_ports(1)
    try:
        job = made(spark, folder, port)
        serving = job.serve(show_token=False)
        job.start()
        until(lambda: total(scraped(port), "spark_ext_epochs_total") >= 1, "an epoch is counted", 120)
        during = scraped(port)
        headers = {"Authorization": f"Bearer {serving.token}"}
        by_rest = parsed(httpx.get(f"{serving.url}/metrics", headers=headers, timeout=60).text)
        assert spark._jvm is not None
        sources = spark._jvm.org.apache.spark.SparkEnv.get().metricsSystem()
        spark_names = [one.sourceName() for one in _java(sources.getSourcesByName("spark.streaming.lab/counts"))]
        otel: dict[str, float] = {}
        data = reader.get_metrics_data()
        assert data is not None
        for metric in data.resource_metrics[0].scope_metrics[0].metrics:
            if metric.name.endswith((".epochs", ".query_state")):
                points: list[Any] = list(metric.data.data_points)
                otel[metric.name] = sum(float(point.value) for point in points)
        assert job.await_termination(240).finished
        after = scraped(port)
        until(lambda: not any("spark-ext-otel" in name for name in _threads()), "the bridge ends", 20)
        spans, threads = exporter.get_finished_spans(), _threads()
        made(spark, folder, port).run(progress=False)
        until(lambda: total(scraped(port), "spark_ext_downtime_seconds_total") > 0, "the past is known", 20)
        yield Seen(folder / "state", port, during, by_rest, after, spans, otel, spark_names, threads, scraped(port))
    finally:
        spark.conf.set("spark.sql.streaming.metricsEnabled", str(before))
        exporters.close_all()
        patch.undo()


def _java(sequence: Any) -> list[Any]:
    return [sequence.apply(number) for number in range(sequence.size())]


def _threads() -> list[str]:
    return [thread.name for thread in threading.enumerate()]


@pytest.mark.core
@pytest.mark.slow(15, "runs the job that all tests of this file look at")
def test_counters_add_up_to_the_rows_of_the_ledger(seen: Seen) -> None:
    epochs, incidents = seen.rows(EpochRow), seen.rows(IncidentRow)
    assert total(seen.after, "spark_ext_epochs_total", query="counts") == len(epochs) >= 4
    assert total(seen.after, "spark_ext_input_rows_total") == sum(row.input_rows or 0 for row in epochs) >= 400
    timed = [row.duration_ms / 1000 for row in epochs if row.duration_ms is not None]
    assert total(seen.after, "spark_ext_epoch_duration_seconds_count") == len(timed)
    assert total(seen.after, "spark_ext_epoch_duration_seconds_sum") == pytest.approx(sum(timed))
    for stage in ("planning", "execution", "log"):
        spent = sum((row.spent_ms or {}).get(stage, 0) for row in epochs) / 1000
        assert total(seen.after, STAGES, stage=stage) == pytest.approx(spent) and spent > 0
    assert total(seen.after, STAGES) <= sum(timed)
    assert total(seen.after, "spark_ext_last_epoch") == max(row.epoch for row in epochs)
    for kind, number in Counter(row.type for row in incidents).items():
        assert total(seen.after, "spark_ext_incidents_total", type=kind) == number
    restarts = [row for row in seen.rows(ExecutionStateRow) if row.operator and row.state == "RESTARTING"]
    assert total(seen.after, "spark_ext_restarts_total") == len(restarts) == 1
    channels = [row for row in seen.rows(FinishedRow) if row.kind == "channel"]
    assert total(seen.after, "spark_ext_channels_finished_total", source="in") == len(channels) == 1
    completed = [row for row in seen.rows(CheckpointRow) if row.status == "COMPLETED"]
    for checkpoint, number in Counter(row.kind for row in completed).items():
        assert total(seen.after, "spark_ext_checkpoints_total", kind=checkpoint, result="completed") == number
    periodic = [row for row in completed if row.kind == "periodic"]
    assert total(seen.after, "spark_ext_checkpoint_duration_seconds_count") == len(periodic) >= 1


def test_a_failure_is_counted_by_its_kind_and_so_is_its_recovery(seen: Seen) -> None:
    labels = {"class": "NETWORK", "query": "counts"}
    assert total(seen.after, "spark_ext_failures_total", origin="user", **labels) == 1
    assert total(seen.after, "spark_ext_recovery_duration_seconds_count", **labels) == 1


def test_downtime_is_the_ledgers_and_continues_at_the_next_start(seen: Seen) -> None:
    status = read_status(str(seen.state))
    incidents = [{**row.__dict__} for row in Ledger(str(seen.state)).table(IncidentRow).rows()]
    kinds = {row["incident_id"]: row["labels"].get("type", "UNKNOWN") for row in incidents}
    assert status.ended is not None
    expected: Counter[str] = Counter()
    for piece in downtime(status.timeline, incidents, status.ended).pieces:
        if piece.down:
            expected[kinds.get(piece.incident, "UNKNOWN")] += piece.seconds  # type: ignore[assignment]
    for kind, seconds in expected.items():
        found = total(seen.later, "spark_ext_downtime_seconds_total", **{"class": kind})
        assert found == pytest.approx(seconds, abs=0.001)
    assert "NETWORK" in expected
    later, after = (total(one, "spark_ext_downtime_seconds_total") for one in (seen.later, seen.after))
    assert later >= after


def test_time_in_each_state_is_the_ledgers_over_all_starts(seen: Seen) -> None:
    status = read_status(str(seen.state))
    assert status.ended is not None
    found = downtime(status.timeline, [], status.ended)
    by_state = {of["state"]: value for of, value in _of(seen.later, "spark_ext_state_seconds_total", query="")}
    for state, seconds in found.by_state().items():
        # The last state is over when the end is recorded, which is after the last value.
        assert by_state[state] == pytest.approx(seconds, abs=0.001 if state != "FINISHED" else 5), state
    (restarts,) = (
        value for of, value in _of(seen.after, "spark_ext_state_seconds_total", query="counts", state="RESTARTING")
    )
    rows = sorted((row for row in seen.rows(ExecutionStateRow) if row.operator == "counts"), key=lambda row: row.since)
    stays = list(pairwise(rows))
    assert restarts == pytest.approx(
        sum((b.since - a.since).total_seconds() for a, b in stays if a.state == "RESTARTING")
    )
    deploying = sum(a.state == "DEPLOYING" for a, b in stays)
    name, labels = "spark_ext_state_duration_seconds_count", {"query": "counts", "state": "DEPLOYING"}
    assert total(seen.after, name, **labels) == deploying >= 2
    up = total(seen.later, "spark_ext_uptime_seconds_total")
    assert 0 < up <= sum(by_state[state] for state in ("RUNNING", "FINISHING") if state in by_state) + 0.001


def _of(scrape: Scrape, name: str, **labels: str) -> list[tuple[dict[str, str], float]]:
    return [
        (dict(of), value)
        for (found, of), value in scrape.items()
        if found == name and labels.items() <= dict(of).items()
    ]


def test_gauges_follow_the_job(seen: Seen) -> None:
    for scrape, state in ((seen.during, "RUNNING"), (seen.after, "FINISHED")):
        for name in ("spark_ext_job_state", "spark_ext_query_state"):
            found = {dict(of)["state"] for (metric, of), value in scrape.items() if metric == name and value}
            assert found == {state} or (found <= {"RUNNING", "RESTARTING"} and scrape is seen.during)
            assert total(scrape, name) == 1
    assert len([of for metric, of in seen.after if metric == "spark_ext_job_state"]) == len(State)
    assert total(seen.after, "spark_ext_channels_running") == 0
    assert total(seen.after, "spark_ext_watermark_delay_seconds") == 0, "the end of input is the end of time"
    assert any(metric == "spark_ext_watermark_delay_seconds" for metric, _ in seen.after)
    assert total(seen.after, "spark_ext_incarnation") == 1 and total(seen.later, "spark_ext_incarnation") == 2


def test_the_rest_server_has_the_same_series(seen: Seen) -> None:
    assert {key for key in seen.during if "recovery" not in key[0]} <= seen.by_rest.keys()
    assert total(seen.by_rest, "spark_ext_epochs_total") >= total(seen.during, "spark_ext_epochs_total")


def test_spark_names_its_own_metrics_as_the_link_says(seen: Seen) -> None:
    assert seen.spark_names == ["spark.streaming.lab/counts"]
    (info,) = (dict(of) for metric, of in seen.after if metric == "spark_ext_query_info")
    assert info["query_name"] == "lab/counts" and info["query_id"] == seen.rows(EpochRow)[0].query_id
    assert len(info["run_id"]) == 36 and info["spark_app_id"].startswith("local-")


def test_opentelemetry_spans_each_epoch_checkpoint_and_recovery(seen: Seen) -> None:
    names = Counter(span.name for span in seen.spans)
    checkpoints = [row for row in seen.rows(CheckpointRow) if row.status in ("COMPLETED", "FAILED")]
    assert names == {
        "spark_ext.epoch": len(seen.rows(EpochRow)),
        "spark_ext.checkpoint": len(checkpoints),
        "spark_ext.recovery": 1,
    }
    (recovery,) = (span for span in seen.spans if span.name == "spark_ext.recovery")
    assert recovery.attributes is not None
    (failure,) = (row for row in seen.rows(IncidentRow) if row.type == "failure")
    assert recovery.attributes["spark_ext.incident_id"] == failure.incident_id
    linked = [span for span in seen.spans if span.links]
    assert len(linked) == 1 and linked[0].links[0].context.span_id == recovery.context.span_id
    assert seen.otel["spark_ext.epochs"] >= 1 and seen.otel["spark_ext.query_state"] == 1


def test_every_series_is_of_the_catalogue(seen: Seen) -> None:
    suffixes = ("", "_bucket", "_sum", "_count")
    for name, _ in seen.after:
        assert any(name.removesuffix(suffix) in BY_NAME for suffix in suffixes), name


def test_nothing_of_the_run_is_left_but_the_endpoint(seen: Seen) -> None:
    assert not [name for name in seen.threads if name.startswith(("spark-ext-otel", "spark-ext-metrics"))]


def test_a_second_start_begins_at_zero_and_replaces_the_first(seen: Seen) -> None:
    assert total(seen.later, "spark_ext_epochs_total") == 0
    assert len([of for metric, of in seen.later if metric == "spark_ext_info"]) == 1


def test_a_port_in_use_refuses_the_start_before_it_has_a_number(spark: SparkSession, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    taken = exporters.Endpoint("127.0.0.1", port)
    try:
        job = sx.Job(spark, "lab", state=tmp_path / "state", metrics_port=port)
        rows = spark.readStream.format("datagen").option("uid", "in").option("rows", 1).load()
        job.add("q", rows.writeStream.format("delta_2pc").option("uid", "out").option("path", str(tmp_path / "out")))
        with pytest.raises(ConfigurationError, match="metrics cannot be served"):
            job.start()
        assert not (tmp_path / "state").exists()
    finally:
        taken.close()
