"""Snapshots and results of a job in this process, from stand-ins for its supervised queries: no Spark."""

import json
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

from spark_ext.jobs.result import JobResult, job_result
from spark_ext.jobs.snapshot import job_snapshot, unstarted_snapshot
from spark_ext.model.execution import Shown
from spark_ext.model.lifecycle import State
from spark_ext.model.offsets import Finished, LoggedOffsets, Running, SourceOffset
from spark_ext.queries.history import Figures
from spark_ext.spark.watching.query_events import SourceReport
from spark_ext.views.snapshot import JobSnapshot, LatencySnapshot
from tests.support.snapshots import T0


def run(uid: str, state: State = State.RUNNING, **values: Any) -> Any:
    given = {"reason": "", "had_finished": False, "committed": -1, "offsets": None, "figures": figures(), **values}
    return SimpleNamespace(
        spec=SimpleNamespace(uid=uid), state=state, shown=Shown(state, given["reason"]), phase="",
        bad_rows=SimpleNamespace(total=0, failures={}, files=()), early_rows=None, **given,
    )  # fmt: skip


def figures(epochs: int = 0, rows: int = 0, state_rows: int = 0, ms: int = 0, **more: Any) -> Figures:
    return Figures(epochs=epochs, input_rows=rows, state_rows=state_rows, last_epoch_ms=ms, **more)


def snapshot(
    *runs: Any, state: State = State.RUNNING, failure: Exception | None = None, late: Exception | None = None,
    latencies: Callable[[str], tuple[LatencySnapshot, ...]] = lambda uid: (),
) -> JobSnapshot:  # fmt: skip
    context = SimpleNamespace(job="flights", incarnation=SimpleNamespace(number=3, lineage=2))
    shown = Shown(state)
    parts = SimpleNamespace(controller=SimpleNamespace(paused=lambda _: False), latency=SimpleNamespace(of=latencies))
    coordinator = SimpleNamespace(shown=shown, failure=failure, late=late, runs=runs, parts=parts)
    return job_snapshot("out/state", T0, cast(Any, context), cast(Any, coordinator))


def finished_job() -> JobSnapshot:
    read = SourceOffset("files", running={"c": Running(7)}, finished=(Finished(2, "b", 5),), sequence=2, ended=True)
    logged = LoggedOffsets(4, {}, (read.to_json(), {"logOffset": 0}, None))
    done = run("daily", State.FINISHED, committed=4, offsets=logged, figures=figures(5, 1000, 2, 250), reason="drained")
    return snapshot(done, run("hourly", State.FINISHED, had_finished=True), state=State.FINISHED)


def test_a_query_before_its_first_epoch() -> None:
    found = snapshot(run("q")).query("q")
    assert (found.state, found.last_epoch, found.epochs) == (State.RUNNING, None, 0)
    assert not found.finished and found.sources == ()


def test_an_epoch_whose_figures_have_not_come_has_no_duration() -> None:
    assert snapshot(run("q", committed=0, figures=figures(1))).query("q").last_epoch_ms is None


def test_latencies_are_those_of_the_query() -> None:
    one = LatencySnapshot(source="in", ms=70, at=T0, hops=(("p", 30), ("q", 70)), way=("x-in",), markers=2)
    result = job_result(snapshot(run("p"), run("q"), latencies=lambda uid: (one,) if uid == "q" else ()))
    assert result.query("q").latencies == (one,) and result.query("p").latencies == ()
    first, second = result.to_json()["queries"]
    assert first["latencies"] == []
    unknown = dict.fromkeys(("p50_ms", "p95_ms", "p99_ms"))
    hops = [{"query": "p", "ms": 30}, {"query": "q", "ms": 70}]
    known = {"source": "in", "ms": 70, "at": T0.isoformat(), "hops": hops, "way": ["x-in"], "markers": 2}
    assert second["latencies"] == [known | unknown]


def test_the_lag_is_what_the_sources_have_said() -> None:
    offsets = [SourceOffset(uid, running={"c": Running(7)}).to_json() for uid in ("a", "b", "c")]
    logged = LoggedOffsets(4, {}, (*offsets, SourceOffset("d", ended=True).to_json()))
    said = {"a": SourceReport(3, 0), "b": SourceReport(None, 0), "d": SourceReport(9, 0)}
    found = snapshot(run("q", committed=4, offsets=logged, figures=figures(reported=said))).query("q")
    assert {source.uid: source.lag_rows for source in found.sources} == {"a": 3, "b": None, "c": None, "d": 0}
    assert found.lag_rows is None
    all_know = figures(reported={"a": SourceReport(3, 0), "Kafka": SourceReport(4, None)}, parts_ms={"planning": 5})
    found = snapshot(run("q", figures=all_know)).query("q")
    assert (found.lag_rows, found.parts_ms) == (7, {"planning": 5})
    assert snapshot(run("q", State.FINISHED, figures=figures(reported=said))).query("q").lag_rows == 0


def test_a_lag_has_the_time_of_its_oldest_figure() -> None:
    said = {"a": SourceReport(3, 0, 100.0), "b": SourceReport(5, 0, 90.0)}
    since = {"a": SourceReport(30, None, 120.0), "b": SourceReport(None, None)}
    offsets = [SourceOffset(uid, running={"c": Running(7)}).to_json() for uid in ("a", "b")]
    logged = LoggedOffsets(4, {}, tuple(offsets))
    behind = figures(reported=said, noted=lambda: since, watermark="2026-01-01T12:01:30.000Z")
    found = snapshot(run("q", committed=4, offsets=logged, figures=behind)).query("q")
    assert found.lag_rows == 35 and found.lag_at is not None and found.lag_at.timestamp() == 90
    assert {one.uid: one.lag_at.timestamp() for one in found.sources if one.lag_at} == {"a": 120, "b": 90}
    assert found.watermark is not None and found.watermark.minute == 1 and found.newest_row is None


def test_a_lag_is_known_before_a_report_if_all_sources_note_it() -> None:
    both = {"a": SourceReport(3, None, 1.0), "b": SourceReport(4, None, 1.0)}
    assert figures(noted=lambda: both).lag.rows == 7
    assert figures(noted=lambda: {**both, "b": SourceReport(None, None)}).lag.rows is None
    assert figures(noted=lambda: both, others=True).lag.rows is None


def test_a_snapshot_has_what_a_result_has_and_more() -> None:
    found = finished_job()
    assert (found.job, found.state_directory, found.incarnation, found.lineage) == ("flights", "out/state", 3, 2)
    assert (found.started, found.ended, found.error) == (T0, None, "")
    assert found.query("daily").last_epoch_ms == 250
    assert found.at > T0


def test_why_a_job_failed() -> None:
    assert snapshot(run("q", State.FAILED), state=State.FAILED, failure=OSError("no space")).error == "no space"
    late = OSError("no answer")
    assert snapshot(run("q", State.FINISHED), state=State.FINISHED, late=late).error == "no answer"
    assert snapshot(state=State.FAILED, failure=OSError("no space"), late=late).error == "no space", "the first"


def test_a_job_that_was_not_started_shows_its_queries() -> None:
    found = unstarted_snapshot("flights", "out/state", ["a", "b"])
    assert (found.state, found.incarnation, found.started, found.seconds) == (State.CREATED, 0, None, 0)
    assert [(query.uid, query.state) for query in found.queries] == [("a", State.CREATED), ("b", State.CREATED)]


def test_the_result_is_the_last_snapshot() -> None:
    last = finished_job()
    result = job_result(last)
    assert isinstance(result, JobResult)
    assert (result.rows, result.epochs, result.finished) == (1000, 5, True)
    assert (result.ended, result.seconds) == (last.at, (last.at - T0) / timedelta(seconds=1))
    assert (result.query("daily").sources[0].channels_running, result.query("daily").state_rows) == (1, 2)
    assert str(result).startswith("job 'flights' FINISHED: 1,000 rows in 5 epochs, ")
    assert "<td>daily</td>" in result._repr_html_()


def test_json_of_a_result() -> None:
    last = finished_job()
    plain = job_result(last).to_json()
    assert json.loads(json.dumps(plain)) == plain
    names = "job state incarnation lineage started ended queries error finished caught_up rows epochs"
    assert list(plain) == names.split()
    assert (plain["state"], plain["started"], plain["ended"]) == ("FINISHED", T0.isoformat(), last.at.isoformat())
    daily, hourly = plain["queries"]
    assert daily == {
        **{"uid": "daily", "state": "FINISHED", "finished": True, "finished_before": False, "reason": "drained"},
        **{
            "epochs": 5,
            "last_epoch": 4,
            "rows": 1000,
            "bad_rows": 0,
            "late_rows": 0,
            "early_rows": None,
            "state_rows": 2,
            "lag_rows": 0,
        },
        **{"parts_ms": None, "lag_at": None, "latencies": [], "rule_failures": {}},
        "sources": [{"uid": "files", "finished": True, "channels_finished": 2, "channels_running": 1, "lag_rows": 0}],
    }
    assert (hourly["finished_before"], hourly["last_epoch"], hourly["sources"]) == (True, None, [])
