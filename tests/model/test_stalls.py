"""When a query is stuck, and what holds it: pure functions of looks and stacks."""

import json
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from spark_ext.failures.evidence import Owner
from spark_ext.failures.labels import FailureType, Origin
from spark_ext.model import stacks, stalls
from spark_ext.model.execution import Look, Phase, Tasks
from spark_ext.model.holders import holder
from spark_ext.model.stacks import Sample, Thread, WorkerSample, java_thread, threads_of, threads_of_py_spy
from spark_ext.model.stalls import Marks, Moves, StallClock, moves, patience, weak_patience

T0 = datetime(2026, 1, 1, tzinfo=timezone.utc)
RUNS = Tasks(running=2)

SPARKS = "/venv/lib/python3.11/site-packages/pyspark"
WORKER = [f"{SPARKS}/worker.py:3650:process", f"{SPARKS}/worker.py:3562:main", f"{SPARKS}/daemon.py:90:worker"]
READS = [f"{SPARKS}/sql/worker/plan_data_source_read.py:120:records_to_arrow_batches", *WORKER]
WRITES = [f"{SPARKS}/sql/worker/write_into_data_source.py:210:data_source_write_func", *WORKER]
PLANS = [f"{SPARKS}/sql/streaming/python_streaming_source_runner.py:313:main"]
COMMITS = [f"{SPARKS}/sql/worker/python_streaming_sink_runner.py:100:main"]
MINE = ["/home/me/flights.py:12:half"]
WAITS = [f"{SPARKS}/serializers.py:595:read_int", *WORKER]


def dump(*stacks: list[str]) -> str:
    out = []
    for number, stack in enumerate(stacks):
        out.append(f"{'Current thread' if not number else 'Thread'} 0x00007f{number} (most recent call first):")
        for frame in stack:
            file, line, function = frame.rsplit(":", 2)
            out.append(f'  File "{file}", line {line} in {function}')
        out.append("")
    return "\n".join(out)


def worker(*stacks: list[str], role: str = "task", uid: str = "", **given: float) -> WorkerSample:
    return WorkerSample("host", 7, role, uid, threads=threads_of(dump(*stacks)), **given)  # type: ignore[arg-type]


def java(*lines: str, name: str = "task", state: str = "TIMED_WAITING") -> Thread:
    return java_thread(name, state, lines)


IN_FUNCTION = "org.apache.spark.sql.execution.streaming.sources.PythonForeachBatchFunction.call(P:1)"
PYTHON_RUNNER = "org.apache.spark.api.python.BasePythonRunner$ReaderInputStream.read(PythonRunner.scala:1001)"


def test_stacks_of_python_are_read() -> None:
    found = threads_of(dump([*MINE, *WORKER], WAITS))
    assert [len(thread.frames) for thread in found] == [4, 4]
    frame = found[0].frames[0]
    assert (frame.owner, frame.place) == (Owner.USER, "/home/me/flights.py, line 12, in half")
    assert threads_of("") == () and threads_of("Segmentation fault\n  ???") == ()


def taken(*workers: WorkerSample, driver: str = "", tasks: tuple[str, ...] = (), **more: Any) -> Sample:
    return Sample(workers, driver=(java(driver),) if driver else (), tasks=(java(*tasks),) if tasks else (), **more)


REQUESTS = "/venv/lib/python3.11/site-packages/requests/api.py:3:get"
OWN_READER = "/x/spark_ext/sources/files/read.py:3:rows"
PYTHON_STREAMING = "org.apache.spark.sql.execution.python.streaming.PythonStreaming"
ROCKS = "org.rocksdb.RocksDB.get(Native Method)"
OF_JDK = "java.base@17.0.13+11/java.lang.ProcessHandleImpl.isAlive0(Native Method)"
CREATES_WORKER = "org.apache.spark.SparkEnv.createPythonWorker(SparkEnv.scala:173)"
KAFKA = "org.apache.spark.sql.kafka010.consumer.KafkaDataConsumer.get(K.scala:3)"
METADATA_LOG = "org.apache.spark.sql.execution.streaming.HDFSMetadataLog.add(H.scala:1)"
CALLED = Thread("t", threads_of(dump([*MINE, f"{SPARKS}/sql/utils.py:160:call"]))[0].frames)
DEADLOCK = (java(ROCKS, name="a"), java(ROCKS, name="b"))
FUNCTION = "the function of foreachBatch at /home/me/flights.py, line 12"
PLANNER = worker(role="planner", uid="in")
COMMITTER = worker([*MINE, *COMMITS], role="committer", uid="out")
EPOCH, PLANNING = Phase.EPOCH, Phase.PLANNING


@pytest.mark.parametrize(
    ("phase", "sample", "expected", "words"),
    [
        (EPOCH, taken(worker([*MINE, *WORKER]), tasks=(PYTHON_RUNNER,)), "USER_CODE user", "half"),
        # A library that the user's function has called is the user's.
        (EPOCH, taken(worker([REQUESTS, *MINE, *WORKER])), "USER_CODE user", "half"),
        # A thread of the user's own, beside the one that Spark has begun.
        (EPOCH, taken(worker(["/home/me/pool.py:1:beside"], [*MINE, *WRITES])), "SINK user", "half"),
        (EPOCH, taken(worker([*MINE, *READS])), "SOURCE user", "the source at /home/me"),
        (EPOCH, taken(worker([OWN_READER, *READS])), "SOURCE library", "read.py"),
        # Another worker of the query waits for Spark: it says nothing.
        (EPOCH, taken(worker(WAITS), worker([*MINE, *WORKER])), "USER_CODE user", "half"),
        (PLANNING, taken(worker([*MINE, *PLANS], role="planner", uid="in")), "SOURCE user", "the source 'in'"),
        (EPOCH, taken(COMMITTER, driver=f"{PYTHON_STREAMING}SinkCommitRunner.a(X:1)"), "SINK user", "the sink 'out'"),
        # The partitions of an epoch are planned within it.
        (EPOCH, taken(PLANNER, driver=f"{PYTHON_STREAMING}SourceRunner.p(X:1)"), "SYSTEM spark", "planner of 'in'"),
        # The planner of the last epoch says nothing about this one.
        (EPOCH, taken(worker([*MINE, *PLANS], role="planner"), driver=METADATA_LOG), "SYSTEM spark", "'s checkpoint"),
        (EPOCH, taken(driver=IN_FUNCTION, python=(CALLED,)), "USER_CODE user", FUNCTION),
        (EPOCH, taken(worker(WAITS), silent=("1",)), "SYSTEM spark", "executor 1 does not answer"),
        (
            EPOCH,
            taken(driver=ROCKS, deadlocked=DEADLOCK),
            "SYSTEM spark",
            "a deadlock in the driver's JVM: 'a', 'b' wait",
        ),
        (EPOCH, taken(tasks=(KAFKA,), deadlocked=(java(name="task"),)), "SYSTEM spark", "deadlock in the driver's JVM"),
        (EPOCH, taken(worker([*MINE, *WORKER]), deadlocked=DEADLOCK), "USER_CODE user", "half"),
        (EPOCH, taken(tasks=(ROCKS, "a.b.C.d(C.java:1)")), "USER_CODE user", "a.b.C.d"),
        (EPOCH, taken(tasks=(ROCKS,)), "SYSTEM spark", "state store"),
        (EPOCH, taken(tasks=(KAFKA,)), "SOURCE library", "Kafka"),
        # A method of the JDK says less than who called it.
        (EPOCH, taken(tasks=(OF_JDK, CREATES_WORKER)), "SYSTEM spark", "SparkEnv.scala, line 173"),
        # A process that is frozen writes no stack.
        (PLANNING, taken(PLANNER), "SYSTEM spark", "planner of 'in'"),
        (EPOCH, taken(worker(), tasks=(PYTHON_RUNNER,)), "SYSTEM spark", "does not answer"),
        (EPOCH, Sample(), "SYSTEM spark", "driver"),
    ],
)
def test_l6_what_holds_a_query(phase: Phase, sample: Sample, expected: str, words: str) -> None:
    found = holder(phase, sample)
    assert f"{found.type.value} {found.origin.value}" == expected
    assert words in found.what
    if found.origin is Origin.USER and found.type is not FailureType.SYSTEM:
        assert found.frame is not None and found.labels["line"] == str(found.frame.line)


def look(phase: Phase, tasks: Tasks | None = None) -> Look:
    return Look(T0, phase, tasks)


STUCK = st.tuples(st.sampled_from([Phase.PLANNING, Phase.EPOCH]), st.sampled_from([None, RUNS]))
NOT_STUCK = st.sampled_from([(Phase.IDLE, None), (Phase.EPOCH, Tasks(waiting=3)), (Phase.UNKNOWN, None)])


@given(st.lists(st.tuples(st.one_of(STUCK, NOT_STUCK), st.integers(0, 3), st.floats(0.1, 5)), max_size=20))
def test_the_clock_runs_only_while_nothing_changes(looks: list[tuple[tuple[Phase, Tasks | None], int, float]]) -> None:
    clock, now, since, last = StallClock(), 0.0, 0.0, None
    for (phase, tasks), done, seconds in looks:
        now += seconds
        marks = Marks(0, phase, done=done)
        clock = clock.after(look(phase, tasks), marks, now, paused=False)
        waits = tasks is not None and tasks.waiting > 0
        if marks != last or phase in (Phase.IDLE, Phase.UNKNOWN) or waits:
            since, last = now, marks
        assert clock.still(now) == pytest.approx(now - since)


def test_a_pause_stops_the_clock_unless_an_epoch_is_under_way() -> None:
    planning, epoch = Marks(0, Phase.PLANNING), Marks(0, Phase.EPOCH)
    clock = StallClock(planning, 0.0)
    assert clock.after(look(Phase.PLANNING), planning, 9.0, paused=True).still(9.0) == 0
    assert clock.after(look(Phase.PLANNING), planning, 9.0, paused=False).still(9.0) == 9
    clock = StallClock(epoch, 0.0)
    assert clock.after(look(Phase.EPOCH, RUNS), epoch, 9.0, paused=True).still(9.0) == 9


def test_patience() -> None:
    assert patience((), None) == stalls.FIRST
    assert patience((200, 900), None) == stalls.SHORTEST
    assert patience((10_000, 10_000), None) == 20
    assert patience((10_000,), None) == 20
    # One epoch in ten that was longer, such as the first one, is not what is usual.
    assert patience((200,) * 9 + (60_000,), None) == stalls.SHORTEST
    assert patience((10_000, 10_000), 3.0) == 3
    # Next to no progress is given as long as the rows of the epoch take.
    assert weak_patience(5.0, None) == weak_patience(5.0, 1.0) == stalls.WEAK * 5.0
    assert weak_patience(5.0, 100.0) == 200.0


def samples(cpu: float, switches: int) -> tuple[Sample, Sample]:
    return Sample((worker(cpu=1.0, switches=5),)), Sample((worker(cpu=1.0 + cpu, switches=5 + switches),))


@pytest.mark.parametrize(
    ("cpu", "switches", "expected"),
    [(0.5, 3, Moves.YES), (0.0, 0, Moves.NOT), (0.001, 0, Moves.NOT), (0.001, 4, Moves.WEAKLY)],
)
def test_cpu_time_is_progress_and_waking_up_is_some(cpu: float, switches: int, expected: int) -> None:
    assert moves(*samples(cpu, switches), 1.0) == expected


def test_another_process_or_a_task_that_computes_is_progress() -> None:
    assert moves(Sample(), Sample((worker(),)), 1.0) == Moves.YES
    for method in (
        "org.apache.spark.network.util.JavaUtils.digestToHexString(JavaUtils.java:781)",
        "a.b.C.loop(C.java:3)",
    ):
        computes = java(method, state="RUNNABLE")
        assert moves(Sample(tasks=(computes,)), Sample(tasks=(computes,)), 1.0) == Moves.YES
    # Spark's own frames, behind one of the JDK, which a thread dump names with its module and version.
    runner = java("java.base@17.0.13+11/sun.nio.ch.EPoll.wait(Native Method)", PYTHON_RUNNER, state="RUNNABLE")
    assert moves(Sample(tasks=(runner,)), Sample(tasks=(runner,)), 1.0) == Moves.NOT
    reads = java("sun.nio.ch.SocketDispatcher.read0(Native Method)", state="RUNNABLE")
    assert moves(Sample(tasks=(reads,)), Sample(tasks=(reads,)), 1.0) == Moves.NOT
    assert moves(Sample(tasks=(reads,)), Sample(tasks=(java("a.b.C.next(C.java:9)"),)), 1.0) == Moves.YES
    # A file that is read, or a disk that does not answer.
    file = java("java.io.FileInputStream.readBytes(Native Method)", state="RUNNABLE")
    assert moves(Sample(tasks=(file,)), Sample(tasks=(file,)), 1.0) == Moves.WEAKLY
    assert moves(Sample(tasks=(reads,)), Sample(tasks=(file,)), 1.0) == Moves.YES
    assert moves(Sample(tasks=(file, computes)), Sample(tasks=(file, computes)), 1.0) == Moves.YES


def test_a_function_that_computes_on_the_driver_is_progress() -> None:
    def called(cpu: float | None, name: str = "Thread-7") -> Sample:
        return Sample(driver=(java(IN_FUNCTION),), python=(Thread(name, cpu=cpu),))

    assert moves(called(3.0), called(3.5), 1.0) == Moves.YES
    assert moves(called(3.0), called(3.01), 1.0) == Moves.NOT
    assert moves(called(None), called(None), 1.0) == moves(called(None), called(9.0), 1.0) == Moves.NOT
    assert moves(called(3.0), called(9.0, "Thread-8"), 1.0) == Moves.NOT
    # The function of another query.
    assert moves(called(3.0), replace(called(9.0), driver=(java("a.B.c(B.java:1)"),)), 1.0) == Moves.NOT


def test_workers_waking_under_silent_executors_are_no_progress() -> None:
    before, after = samples(0.001, 4)
    silent = replace(before, silent=("0",)), replace(after, silent=("0", "1"))
    assert moves(*silent, 1.0) == Moves.NOT
    assert moves(before, silent[1], 1.0) == Moves.WEAKLY
    # Another executor that computes, or a worker that does.
    computes = java("a.b.C.loop(C.java:3)", state="RUNNABLE")
    assert moves(silent[0], replace(silent[1], tasks=(computes,)), 1.0) == Moves.YES
    before, after = samples(0.5, 4)
    assert moves(replace(before, silent=("0",)), replace(after, silent=("0",)), 1.0) == Moves.YES


UNSEEN = WorkerSample("host", 8, "task", no_stack="it is not installed")


def test_a_missing_stack_is_explained_and_is_no_frozen_process() -> None:
    sample = Sample((UNSEEN,), tasks=(java(PYTHON_RUNNER),), no_stacks="it is not installed")
    found = holder(Phase.EPOCH, sample)
    assert found.what.endswith("which waits for a Python worker without a stack: it is not installed")
    assert (found.type, found.origin) == (FailureType.SYSTEM, Origin.SPARK)
    assert "not installed" not in holder(Phase.EPOCH, replace(sample, tasks=(java("a.b.C.d(C.java:1)"),))).what
    # One that was asked and is mute is frozen.
    assert "does not answer" in holder(Phase.EPOCH, replace(sample, workers=(replace(UNSEEN, no_stack=""),))).what


def test_a_possible_worker_of_others_counts_only_at_a_standstill() -> None:
    mine = worker([*MINE, *WORKER], cpu=1.0)
    maybe = replace(mine, pid=9, alone=False)
    before = Sample((mine, maybe))
    assert stacks.unmoved(before, before, 1.0) == before
    busy = replace(maybe, cpu=1.5)
    for other in (busy, replace(maybe, threads=worker(WAITS).threads), replace(maybe, pid=10)):
        assert stacks.unmoved(before, Sample((mine, other)), 1.0).workers == (mine,)
    # And its CPU time is not progress of this query.
    assert moves(before, Sample((mine, busy)), 1.0) == Moves.NOT
    assert moves(before, Sample((replace(mine, cpu=1.5), maybe)), 1.0) == Moves.YES


def test_what_py_spy_writes_is_read() -> None:
    frame = {"name": "half", "filename": "/home/me/flights.py", "line": 12, "short_filename": "flights.py"}
    one = {"pid": 1, "thread_id": 255, "thread_name": None, "active": False, "owns_gil": True, "frames": [frame]}
    (thread,) = threads_of_py_spy(json.dumps([one]))
    assert (thread.name, thread.runs) == ("0xff", False)
    assert thread.frames[0].place == "/home/me/flights.py, line 12, in half"
    for text in ("", "{", "[1]", '{"a": 1}', json.dumps([{**one, "frames": [{}]}])):
        with pytest.raises(ValueError):
            threads_of_py_spy(text)


@pytest.mark.parametrize(
    ("module", "role"),
    [
        ("pyspark.daemon", "task"),
        ("pyspark.sql.streaming.python_streaming_source_runner", "planner"),
        ("pyspark.sql.worker.plan_data_source_read", "planner"),
        ("pyspark.sql.worker.python_streaming_sink_runner", "committer"),
    ],
)
def test_what_a_process_does_is_known_by_its_command_line(module: str, role: str) -> None:
    assert stacks.role_of(["/usr/bin/python3", "-m", module, "x"]) == role
    assert stacks.role_of(["python3", "shop.py"]) == stacks.role_of([]) == "task"
