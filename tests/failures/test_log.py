"""Logs of drivers, as people paste them: the trace of the query that ended is judged, not the first one."""

from collections.abc import Callable

import pytest

from spark_ext.failures.classifier import Classifier
from spark_ext.failures.evidence import Evidence
from spark_ext.failures.log import failed_part
from spark_ext.failures.text import evidence_of_text

CLASSIFIER = Classifier()
PYTHON = """\
Traceback (most recent call last):
  File "/opt/app/flights.py", line 12, in half
    return 1 / n
           ~~^~~
ZeroDivisionError: division by zero
"""
FRAMES = """
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:1)
\tat org.apache.spark.scheduler.Task.run(Task.scala:1)
\tat java.base/java.lang.Thread.run(Thread.java:840)
"""
WARNING = """\
24/05/01 12:00:01 WARN TransportChannelHandler: Exception in connection from /10.0.0.1:1
java.io.IOException: Connection reset by peer
\tat java.base/sun.nio.ch.SocketDispatcher.read0(Native Method)
\tat io.netty.channel.socket.nio.NioSocketChannel.doReadBytes(NioSocketChannel.java:1)
"""
LOST = "24/05/01 12:00:05 WARN TaskSetManager: Lost task 0.0 in stage 0.0 (TID 0) (10.0.0.7 executor 1): "
TASK = f"""\
24/05/01 12:00:05 ERROR Executor: Exception in task 0.0 in stage 0.0 (TID 0)
org.apache.spark.api.python.PythonException: {PYTHON}{FRAMES}\
{LOST}org.apache.spark.api.python.PythonException: {PYTHON}{FRAMES}
24/05/01 12:00:06 ERROR TaskSetManager: Task 0 in stage 0.0 failed 4 times; aborting job
"""
TRACE = f"""\
org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 failed 4 times, most recent \
failure: Lost task 0.3 in stage 0.0 (TID 3) (10.0.0.7 executor 1): org.apache.spark.api.python.PythonException: \
{PYTHON}{FRAMES}
Driver stacktrace:
\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:1)
Caused by: org.apache.spark.api.python.PythonException: {PYTHON}{FRAMES}"""
QUERY = f"24/05/01 12:00:06 ERROR MicroBatchExecution: Query [id = 65, runId = df] terminated with error\n{TRACE}"
SHUTDOWN = """\
24/05/01 12:00:07 INFO SparkContext: SparkContext is stopping with exitCode 1.
24/05/01 12:00:07 ERROR TransportRequestHandler: Error while invoking RpcHandler#receive() for one-way message.
org.apache.spark.SparkException: Could not find CoarseGrainedScheduler.
\tat org.apache.spark.rpc.netty.Dispatcher.postMessage(Dispatcher.scala:1)
24/05/01 12:00:07 INFO ShutdownHookManager: Shutdown hook called
"""
WHOLE = WARNING + TASK + QUERY + SHUTDOWN
NOTEBOOK = (
    "---------------------------------------------------------------------------\n"
    "StreamingQueryException                   Traceback (most recent call last)\n"
    "File <command-123>, line 3\n      1 q = df.writeStream\n----> 3 q.awaitTermination()\n\n"
    "StreamingQueryException: [STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: [PYTHON_EXCEPTION] "
    f"An exception was thrown from the Python worker: {PYTHON} SQLSTATE: 38000\n"
)


def behind(prefix: str, text: str = WHOLE) -> str:
    return "".join(f"{prefix}{line}\n" for line in text.splitlines())


def read(text: str) -> Evidence:
    found = evidence_of_text(text)
    assert found is not None
    return found


@pytest.mark.parametrize(
    "log",
    [
        WARNING + TASK, WARNING + QUERY, QUERY + WARNING, WHOLE, WHOLE.replace("24/05/01 12", "2024-05-01 12"),
        WHOLE.replace("24/05/01 12", "2024-05-01T12"), behind("2024-05-01T12:00:00.123456789Z stderr F "),
        behind("2024-05-01T12:00:00.123456789Z "), behind("driver-1  | "),
        behind("[2024-05-01, 12:00:00 UTC] {spark_submit.py:641} INFO - "),
        f"2024-05-01 12:00:00.123 [stream thread for q] ERROR o.a.s.MicroBatchExecution - Query failed\n{TRACE}",
        f"2024-05-01 12:00:00,123 INFO root: start\n2024-05-01 12:00:01,123 ERROR shop.jobs: it failed\n{PYTHON}",
        f"2024-05-01 12:00:00,123 - shop.jobs - ERROR - it failed\n{PYTHON}",
        f"[2024-05-01 12:00:00] [ERROR] [shop] failed - x\n{PYTHON}",
        f"INFO:root:start\nERROR:shop:it failed\n{PYTHON}", f"{WARNING}{NOTEBOOK}",
        f"java.net.ConnectException: refused\n\tat java.net.Socket.connect(Socket.java:1)\n\n{TRACE}",
    ],
)  # fmt: skip
def test_the_trace_of_what_ended_the_query_is_judged(log: str) -> None:
    found = CLASSIFIER.judge(read(log))
    assert (found.type.value, found.place) == ("USER_CODE", "/opt/app/flights.py, line 12, in half")


@pytest.mark.parametrize("of", [lambda text: text, lambda text: behind("2024-05-01T12:00:00Z stdout F ", text)])
def test_frames_of_one_trace_are_not_those_of_another(of: Callable[[str], str]) -> None:
    assert not any("Dispatcher" in frame.function for raised in read(of(WHOLE)).chain for frame in raised.frames)


@pytest.mark.parametrize("text", ["", "no trace", PYTHON, TRACE, f"{PYTHON}24/05/01"])
def test_what_is_no_log_is_taken_as_it_is(text: str) -> None:
    assert failed_part(text) == text


def test_a_message_like_a_record_does_not_hide_the_querys_trace() -> None:
    lie = "24/05/01 12:00:09 ERROR Executor: x\njava.net.ConnectException: refused\n\tat a.B.c(B.java:1)"
    text = QUERY.replace("division by zero", f"division by zero\n{lie}")
    assert CLASSIFIER.judge(read(text)).type.value == "USER_CODE"
