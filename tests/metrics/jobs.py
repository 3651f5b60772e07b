"""Metrics of a job without Spark."""

from typing import Any

from spark_ext.metrics.catalogue import CATALOGUE
from spark_ext.metrics.gauges import Live, QueryFacts
from spark_ext.metrics.job_metrics import JobMetrics
from spark_ext.model.lifecycle import State
from spark_ext.views.snapshot import JobSnapshot, QuerySnapshot, SourceSnapshot
from tests.views.test_timeline import at

BY_NAME = {metric.name: metric for metric in CATALOGUE}


def live(job: str = "j", queries: tuple[str, ...] = ("q",), watermark: str = "", **more: Any) -> Live:
    def shown(uid: str) -> QuerySnapshot:
        source = SourceSnapshot(uid=f"{uid}-in", finished=False, channels_finished=1, channels_running=2)
        return QuerySnapshot(uid=uid, state=State.RUNNING, state_rows=7, sources=(source,))

    def facts(uid: str) -> QueryFacts:
        names: dict[str, Any] = {"query_id": f"id-{uid}", "run_id": "r", "name": f"{job}/{uid}"}
        lag: dict[str, Any] = {"lags": {f"{uid}-in": 12}, "lags_at": {f"{uid}-in": 0.0}}
        return QueryFacts(**names, watermark=watermark, newest_row=watermark, **lag)

    snapshot = JobSnapshot(
        job=job, state_directory="out/state", state=State.RUNNING, incarnation=3, lineage=1, started=at(0), ended=None,
        at=at(100), queries=tuple(map(shown, queries)),
    )  # fmt: skip
    return Live(snapshot=snapshot, facts={uid: facts(uid) for uid in queries}, application_id="local-1", **more)


def measured(*rows: Any, job: str = "j", shown: Live | None = None, limit: int = 1_000) -> JobMetrics:
    metrics = JobMetrics(job, limit, clock=lambda: at(100))
    for row in rows:
        metrics.tap(row)
    metrics.watch(lambda: shown)
    return metrics


def value(metrics: JobMetrics, name: str, *labels: str) -> float:
    """The value of a series; labels without the job's."""
    (found,) = [one for one in metrics.samples() if one.metric.name == name and one.labels[1:] == labels]
    return found.value
