"""Spans follow from rows."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from spark_ext import masking
from spark_ext.metrics.job_metrics import JobMetrics, Moment
from spark_ext.metrics.spans import Span, spans
from tests.ledger.rows import checkpoint, epoch, flag
from tests.metrics.rows import incident
from tests.views.test_timeline import at


def made(*rows: Any) -> list[Span]:
    metrics, found = JobMetrics("j"), list[Span]()

    class Follower:
        dropped = 0

        def take(self, moment: Moment) -> None:
            found.extend(spans("j", moment))

        def end(self) -> None:
            """Nothing is left."""

    metrics.follow(Follower())
    for row in rows:
        metrics.tap(row)
    return found


def test_an_epoch_lasts_from_its_planning_to_its_commit() -> None:
    (span,) = made(replace(epoch(4, incarnation=3), duration_ms=250), flag(1))
    assert span.name == "spark_ext.epoch" and span.until - span.since == timedelta(milliseconds=250)
    given = {
        "job": "j", "query": "q", "epoch": 4, "incarnation": 3, "lineage": 1, "query_id": "id-q-1", "input_rows": 10,
    }  # fmt: skip
    assert span.attributes == {f"spark_ext.{name}": value for name, value in given.items()}


def test_the_epoch_that_ends_a_recovery_follows_it() -> None:
    rows = [incident("a", 10, type="NETWORK"), incident("b", 11, type="NETWORK"), epoch(8, at=at(15))]
    recovery, of_epoch = made(*rows, rows[-1])
    assert (recovery.name, recovery.since, recovery.until) == ("spark_ext.recovery", at(10), at(15))
    assert of_epoch.follows is recovery
    wanted = {"incident_id": "a", "class": "NETWORK", "failures": 2, "query": "q", "epoch": 8, "job": "j"}
    assert {f"spark_ext.{name}": value for name, value in wanted.items()}.items() <= recovery.attributes.items()


def test_a_checkpoint_has_one_span_whatever_its_steps() -> None:
    masking.remember("hunter2-hunter2")
    aligned = replace(checkpoint(1, at=at(9)), mode="aligned", triggered_at=at(5))
    failed = replace(checkpoint(2, status="FAILED", at=at(20)), reason="at hunter2-hunter2")
    good, bad = made(replace(aligned, status="TRIGGERED"), aligned, aligned, failed)
    assert (good.since, good.until, good.error) == (at(5), at(9), "")
    assert good.attributes["spark_ext.checkpoint_mode"] == "aligned" and good.attributes["spark_ext.checkpoint_id"] == 1
    assert bad.error == "at ***" and bad.since == bad.until
