"""What the status store and the thread dumps of this Spark are: what `activity` and `thread_dumps` rely on."""

import threading
import time
from pathlib import Path

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark_ext.model.execution import Phase
from spark_ext.spark.backend.diagnosis import DRIVER
from spark_ext.spark.watching.activity import Activity, ActivityReader, look_at
from spark_ext.spark.watching.thread_dumps import ThreadDumps, query_thread, tasks_of
from tests.support.waiting import until


def full(activity: Activity, run: str) -> Activity | None:
    """What was seen, if both slots run tasks of the query."""
    tasks = activity.tasks(run)
    return activity if tasks is not None and tasks.running == 2 else None


def test_tasks_executors_and_threads_of_a_streaming_query(spark: SparkSession, tmp_path: Path) -> None:
    gate = str(tmp_path / "gate")

    @F.udf("long")
    def wait(value: int) -> int:
        from pathlib import Path

        while not Path(gate).exists():
            time.sleep(0.05)
        return value

    reader, dumps = ActivityReader(spark), ThreadDumps(spark)
    frame = spark.readStream.format("rate").option("rowsPerSecond", 10).option("numPartitions", 5).load()
    writer = frame.withColumn("v", wait("value")).writeStream.format("noop")
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        run = str(query.runId)
        activity = until(lambda: full(reader.read(), run), "two tasks run")
        assert activity is not None
        look = look_at(query, activity)
        assert look.phase is Phase.EPOCH and look.tasks is not None
        assert (look.tasks.waiting, look.tasks.done, look.tasks.failed) == (3, 0, 0)
        assert look.cluster is not None and (look.cluster.executors, look.cluster.slots) == (1, 2)
        threads = dumps.of([DRIVER, "nobody"])
        assert threads["nobody"] is None and threads[DRIVER] is not None
        stages = [stage.id for stage in activity.stages_of(run)]
        assert len(tasks_of(threads[DRIVER], stages)) == 2
        assert tasks_of(threads[DRIVER], [stages[0] + 1000]) == ()
        (own,) = query_thread(threads[DRIVER], run)
        assert any("MicroBatchExecution" in frame.function for frame in own.frames)
    finally:
        Path(gate).touch()
        query.stop()
    until(lambda: reader.read().tasks(run) is None, "its job has ended")


def test_a_deadlock_in_the_jvm_is_named_by_its_threads(spark: SparkSession) -> None:
    """Two threads of this process, each with a thread of the JVM, take two locks in the opposite order."""
    jvm, meet, dumps = spark.sparkContext._jvm, threading.Barrier(2, timeout=60), ThreadDumps(spark)
    assert jvm is not None and dumps.deadlocked() == ()
    locks = [jvm.java.util.concurrent.locks.ReentrantLock() for _ in range(2)]
    threads = {}

    def take(number: int) -> None:
        threads[number] = jvm.java.lang.Thread.currentThread()
        locks[number].lock()
        meet.wait()
        try:
            locks[1 - number].lockInterruptibly()
            locks[1 - number].unlock()
        except Py4JJavaError:
            pass  # it was interrupted: the other one gets its lock
        finally:
            locks[number].unlock()

    mine = [threading.Thread(target=take, args=(number,), daemon=True) for number in range(2)]
    for thread in mine:
        thread.start()
    try:
        found = until(dumps.deadlocked, "the deadlock is found", 60)
        assert found is not None
        assert set(found) == {thread.getName() for thread in threads.values()}
    finally:
        threads[0].interrupt()
        for thread in mine:
            thread.join(60)
    assert dumps.deadlocked() == ()
