"""What a failure that came through Spark is taken for: by what Spark and our workers say, never by a user's words."""

import errno
import traceback
from collections.abc import Callable

import pytest
import yaml

from spark_ext import errors
from spark_ext.errors import ConfigurationError, SparkExtError, StateError, StorageError
from spark_ext.failures.classifier import Classifier
from spark_ext.failures.labels import FailureType, Origin, Response
from spark_ext.failures.rules import FailureRules
from spark_ext.failures.text import evidence_of_text
from spark_ext.model.restarts import Handling
from spark_ext.queries.describe_failure import Diagnosis, SparkFailure, diagnosed

CLASSIFIER = Classifier()
WORDS = {
    "our error": "spark_ext.errors.StateError: [STATE] the checkpoint is gone",
    "our error in brackets": "[STATE] the checkpoint is gone\n  at:   job 'x'\n  do:   weep",
    "a full disk": "No space left on device",
    "Java's full disk": "java.io.IOException: No space left on device",
    "Java's full disk on a line of its own": "it failed\njava.io.IOException: No space left on device\nCaused by: "
    "java.io.IOException: No space left on device",
    "a quota": "Disk quota exceeded",
    "a read-only disk": "java.io.FileNotFoundException: /x (Read-only file system)",
    "another schema": "[STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE] Provided value schema does not match",
}


def in_spark(raised: str) -> str:
    """The text and the stack of a query that failed by a Python error, as Spark 4.2 writes them."""
    shown = (
        "[STREAM_FAILED] Query [id = 11-22, runId = 33-44] terminated with exception: Job aborted due to stage "
        "failure: Task 0 in stage 1.0 failed 1 times, most recent failure: Lost task 0.0 in stage 1.0 (TID 1) "
        f"(host executor driver): org.apache.spark.api.python.PythonException: {raised}\n"
        "\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:1)\n"
        "\nDriver stacktrace: SQLSTATE: XXKST"
    )
    stack = (
        f"org.apache.spark.sql.streaming.StreamingQueryException: {shown}\n"
        "\tat org.apache.spark.sql.execution.streaming.StreamExecution.run(StreamExecution.scala:1)\n"
        f"Caused by: org.apache.spark.api.python.PythonException: {raised}\n"
        "\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:1)\n"
    )
    return f"{shown}\n\n{stack}"


def diagnosis_of(text: str, query: str = "q") -> Diagnosis:
    evidence = evidence_of_text(text)
    assert evidence is not None
    failure = SparkFailure(text, evidence, CLASSIFIER.judge(evidence))
    return diagnosed(failure, f"job 'j', query '{query}'", 3, CLASSIFIER, query)


def stopped_by(words: str, query: str = "q") -> Diagnosis:
    return diagnosis_of(f"[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: {words}", query)


def judged(failure: BaseException, classifier: Classifier = CLASSIFIER) -> BaseException:
    return SparkFailure.of(failure, classifier, job="j", query="q", epoch=0)


def traced(raise_it: Callable[[], None]) -> str:
    try:
        raise_it()
    except Exception:
        return traceback.format_exc()
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize("kind", [ValueError, OSError, SparkExtError], ids=str)
@pytest.mark.parametrize("words", WORDS)
def test_a_users_words_decide_nothing(words: str, kind: type[Exception]) -> None:
    def users() -> None:
        raise kind(WORDS[words])

    found = diagnosis_of(in_spark(traced(users)))
    assert type(found.error) is SparkExtError
    assert found.error.operator == "job 'j', query 'q', epoch 4"
    assert found.verdict.type is FailureType.USER_CODE
    assert found.handling == Handling(Response.STOP)


def test_our_errors_count_by_the_mark_of_the_sessions_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is ours carries a mark that text cannot fake, and which nobody sees."""

    def ours() -> None:
        try:
            raise StorageError("it was full", do="free it")
        except StorageError as inner:
            raise StateError(f"it is gone: {inner}", operator="sink 'x'", kept="all", do="look") from inner

    with monkeypatch.context() as worker:
        for name, value in errors.for_workers().items():
            worker.setenv(name, value)
        text = traced(ours)
    found = diagnosis_of(in_spark(text)).error
    assert type(found) is StateError
    assert str(found) == (
        "[STATE] it is gone: [STORAGE] it was full do: free it\n  at:   sink 'x'\n  kept: all\n  do:   look"
    )
    (mark,) = errors.for_workers().values()
    assert type(diagnosis_of(in_spark(text.replace(mark, "0" * len(mark)))).error) is SparkExtError


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("Caused by: java.io.IOException: No space left on device", StorageError),
        ("java.nio.file.FileSystemException: /s/offsets/.3.tmp: No space left on device", StorageError),
        ("Caused by: org.apache.hadoop.fs.FSError: java.io.IOException: Disk quota exceeded", StorageError),
        (
            "Lost task 0.0 in stage 1.0 (TID 1) (h executor 1): java.io.IOException: No space left on device",
            StorageError,
        ),
        ("Caused by: java.io.FileNotFoundException: /s/offsets/.3.tmp (Read-only file system)", StateError),
    ],
)
def test_a_disk_counts_where_java_says_so(line: str, kind: type[SparkExtError]) -> None:
    assert type(stopped_by(f"it failed\n\n{line}\n\tat x.Y(Z.java:1)").error) is kind


def test_a_disk_counts_where_the_driver_itself_meets_it() -> None:
    def kind(problem: OSError) -> type[SparkExtError]:
        return type(diagnosed(problem, "q", 0, CLASSIFIER).error)

    assert kind(OSError(errno.ENOSPC, "no room")) is StorageError
    assert kind(OSError(errno.EROFS, "no")) is StateError
    assert kind(OSError(errno.ENOENT, "No space left on device")) is SparkExtError


@pytest.mark.parametrize(
    "words",
    [
        "[STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE] Provided value schema does not match existing state value schema.",
        "[STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE] Provided key schema does not match existing state key schema.",
        "[STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA] Streaming stateful operator name does not match.",
        "There are [1] sources in the checkpoint offsets and now there are [2] sources requested by the query.",
    ],
)
def test_a_state_other_than_the_checkpoints_explains_the_reset(words: str) -> None:
    found = stopped_by(f"{words} SQLSTATE: XXKST", "daily").error
    assert type(found) is StateError
    assert "job.reset('daily', cascade=True)" in found.do and "emptied targets" in found.do and "restore" in found.do


def test_state_that_is_written_late_is_removed_by_a_restart() -> None:
    """Neither a restore nor a reset is a way out: what has written it would write again."""
    words = "[STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY] The checkpoint location state should be empty on batch 0."
    found = stopped_by(words)
    assert found.handling.response is Response.RESTART
    assert "restore" not in found.error.do and "earlier driver" in found.error.do


def test_a_state_store_without_format_2_names_both_settings() -> None:
    words = "[STATE_STORE_CHECKPOINT_IDS_NOT_SUPPORTED] HDFSBackedStateStoreProvider does not support it"
    found = stopped_by(words).error
    assert type(found) is ConfigurationError
    assert "stateStore.providerClass" in found.what and "checkpointFormatVersion" in found.do


def test_the_users_line_comes_first() -> None:
    text = in_spark(
        "Traceback (most recent call last):\n"
        '  File "/opt/lib/python3.11/site-packages/pyspark/worker.py", line 3, in main\n    process()\n'
        '  File "/home/me/flights.py", line 12, in half\n    return 1 / n\n           ~~^~~\n'
        '  File "/opt/lib/python3.11/site-packages/pandas/core/frame.py", line 3, in apply\n    f()\n'
        "ZeroDivisionError: division by zero\n"
    )
    found = diagnosis_of(text).error
    assert found.what == "/home/me/flights.py, line 12, in half: ZeroDivisionError: division by zero"
    assert found.stack == text


def test_the_stack_of_the_jvm_is_part_of_a_failures_text() -> None:
    class Captured(Exception):
        _stackTrace = "java.lang.X: it failed\n\tat a.B(C.java:1)"

    assert str(judged(Captured("it failed"))) == f"it failed\n\n{Captured._stackTrace}"
    own = StateError("it failed")
    assert judged(own) is own


def test_installed_packages_of_the_users_own_are_the_users() -> None:
    try:
        yaml.safe_load("a: b: c")
    except yaml.YAMLError as problem:
        failure = problem

    def origin(packages: tuple[str, ...]) -> Origin:
        found = judged(failure, Classifier(FailureRules(user_packages=packages)))
        return diagnosed(found, "q", 0, CLASSIFIER).verdict.origin

    assert (origin(()), origin(("yaml",))) == (Origin.DEPENDENCY, Origin.USER)
