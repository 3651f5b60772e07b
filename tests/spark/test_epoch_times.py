"""What Spark's status stores have of an epoch: what `epoch_times` relies on, and how it is read."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from spark_ext.model.epoch_parts import PlanTime, StageTime
from spark_ext.spark.watching.epoch_times import (
    EpochTimes,
    JobTime,
    job_of,
    milliseconds,
    newest_epochs,
    plan_of,
    stage_of,
    together,
)
from tests.support.waiting import until

TOTAL = "total (min, med, max (stageId: taskId))\n1.2 s (100 ms, 1.1 s, 1.1 s (stage 19.0: task 27))"


def test_times_as_spark_shows_them() -> None:
    shown = ("0 ms", "530 ms", "1.3 s", "2.1 m", "1.50 h", TOTAL, "5.7 KiB", "")
    assert [milliseconds(one) for one in shown] == [0, 530, 1_300, 126_000, 5_400_000, 1_200, 0, 0]


def node(number: int, name: str, **metrics: int) -> dict[str, Any]:
    named = [{"name": metric.replace("_", " "), "accumulatorId": at} for metric, at in metrics.items()]
    return {"id": number, "name": name, "desc": "", "metrics": named}


def python(number: int, at: int) -> dict[str, Any]:
    return node(number, "MapInArrow", time_to_execute_Python_code=at, time_to_run_Python_workers=at + 1)


def graph(*nodes: dict[str, Any], edges: str) -> dict[str, Any]:
    """Edges such as `3>2`: from a child to its parent."""
    pairs = [edge.split(">") for edge in edges.split()]
    return {"nodes": list(nodes), "edges": [{"fromId": int(a), "toId": int(b)} for a, b in pairs]}


def test_a_plan_without_a_shuffle() -> None:
    codegen = {**node(2, "WholeStageCodegen (1)", duration=30), "nodes": [node(3, "Project")]}
    plan = graph(node(0, "Write"), python(1, 10), codegen, node(4, "MicroBatchScan"), edges="1>0 3>1 4>3")
    values = {"10": "300 ms", "11": "500 ms", "30": "150 ms"}
    assert plan_of(plan, values) == PlanTime(False, 300, 0, 0, 150)
    # Rows that trickle in keep the pipeline open for as long as the function runs; then it is what the function waits.
    assert plan_of(plan, {**values, "30": "480 ms"}).reading_most == 200
    assert not plan_of(graph(node(0, "BroadcastExchange"), node(1, "Scan"), edges="1>0"), {}).shuffled, "of a join"


def test_a_plan_with_functions_on_both_sides_of_a_shuffle() -> None:
    state = node(2, "FlatMapGroupsInPandasWithState", time_to_update=20, time_to_commit_changes=21)
    state["metrics"] += python(2, 22)["metrics"]
    last = (node(3, "Exchange"), python(4, 40), node(5, "MicroBatchScan"))
    plan = graph(node(0, "Write"), python(1, 10), state, *last, edges="1>0 2>1 3>2 4>3 5>4")
    values = {"10": "1 ms", "20": "100 ms", "21": "50 ms", "22": "60 ms", "40": "7 ms", "41": "9 ms"}
    assert plan_of(plan, values) == PlanTime(True, 7, 61, 90, 2)


def test_the_plans_of_one_function_add_up() -> None:
    assert together([PlanTime(False, 1, 2, 3, 4), PlanTime(True, 1, 2, 3, 4)]) == PlanTime(True, 2, 4, 6, 8)
    assert together([PlanTime(reading_most=4), PlanTime()]).reading_most is None
    assert together([]) == PlanTime()


def test_of_each_run_the_newest_epoch_that_is_committed() -> None:
    jobs = [JobTime(run, epoch, 0, 1, (), None) for run, epoch in [("a", 4), ("a", 3), ("b", 9), ("a", 3), ("c", 1)]]
    found = newest_epochs(jobs, {"a": 3, "b": 8, "d": 5})
    assert {run: [job.epoch for job in of] for run, of in found.items()} == {"a": [3, 3]}


def test_jobs_of_others_and_skipped_stages_are_left_out() -> None:
    info = {"description": "count at x", "status": "SUCCEEDED"}
    assert job_of({"info": info}) is None
    assert job_of({"info": {**info, "description": "n\nid = i\nrunId = r\nbatch = 3", "status": "FAILED"}}) is None
    assert stage_of({"stageId": 1, "status": "SKIPPED"}) is None


def slow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        time.sleep(0.3)
        yield batch


def test_a_real_epoch_with_state_and_a_function(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).option("numPartitions", 1).load()
    writer = frame.mapInArrow(slow, frame.schema).dropDuplicates(["value"]).writeStream.format("noop")
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        times, run = EpochTimes(spark), str(query.runId)
        until(lambda: [one for one in query.recentProgress if one["batchId"] >= 1], "two epochs")
        jobs = until(lambda: newest_epochs(times.jobs(1), {run: 1}).get(run), "its jobs are in the store")
        assert jobs is not None
        found = times.read(jobs)
    finally:
        query.stop()
    assert found.epoch in (0, 1) and found.plan.shuffled
    assert found.plan.reading_user >= 300 and not found.plan.later_user
    assert found.plan.state > 0
    first, last = sorted(found.stages, key=lambda stage: stage.id)
    assert isinstance(first, StageTime) and not first.reads_shuffle and last.reads_shuffle
    assert first.run_ms >= 300 and first.ended - first.began >= 300
    (began, ended), *_ = found.jobs
    assert began <= first.began <= first.ended <= last.ended <= ended
