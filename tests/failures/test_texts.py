"""Evidence from text: tracebacks, stack traces, and messages that imitate them."""

import json
import traceback

import hypothesis.strategies as st
import pytest
from hypothesis import given

from spark_ext import errors
from spark_ext.failures import java_text, python_text, record
from spark_ext.failures.classifier import Classifier
from spark_ext.failures.evidence import Evidence, Frame, Link, Owner, Raised
from spark_ext.failures.owners import owner_of_class, owner_of_file
from spark_ext.failures.text import evidence_of_text
from tests.failures.test_neighbours import raised_by

WORKER = '  File "/opt/lib/python3.11/site-packages/pyspark/worker.py", line 3, in main\n    process()\n'
USER = '  File "/home/me/flights.py", line 12, in half\n    return 1 / n\n           ~~^~~\n'
CHAIN = "\n\nThe above exception was the direct cause of the following exception:\n\n"


def python(frames: str, last: str) -> str:
    return f"Traceback (most recent call last):\n{frames}{last}\n"


def java(python: str) -> str:
    return (
        "org.apache.spark.sql.streaming.StreamingQueryException: [STREAM_FAILED] Query [id = 1, runId = 2] terminated "
        f"with exception: [PYTHON_EXCEPTION] An exception was thrown from the Python worker: {python} SQLSTATE: 38000\n"
        "\tat org.apache.spark.sql.execution.streaming.StreamExecution.run(StreamExecution.scala:1)\n"
        "Caused by: org.apache.spark.api.python.PythonException: [PYTHON_EXCEPTION] An exception was thrown from the "
        f"Python worker: {python} SQLSTATE: 38000\n"
        "\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:1)\n"
        "\t... 1 more\n"
    )


def kinds(text: str) -> list[str]:
    evidence = evidence_of_text(text)
    return [] if evidence is None else [raised.kind for raised in evidence.chain]


def test_a_traceback() -> None:
    (raised,) = python_text.exceptions(python(WORKER + USER, "ZeroDivisionError: division by zero"))
    half = Frame(Owner.USER, "/home/me/flights.py", 12, "half")
    main = Frame(Owner.SPARK, "/opt/lib/python3.11/site-packages/pyspark/worker.py", 3, "main")
    kind, base = "builtins.ZeroDivisionError", "builtins.ArithmeticError"
    assert raised == Raised(kind, "division by zero", frames=(half, main), bases=(base,), by="call")
    assert half.place == "/home/me/flights.py, line 12, in half"


@pytest.mark.parametrize("after", ["", "\n\n SQLSTATE: 38000 SQLSTATE: XXKST\n=== Streaming Query ===\nIdentifier: x"])
def test_an_exception_without_a_message(after: str) -> None:
    (raised,) = python_text.exceptions(python(WORKER + USER, f"MemoryError{after}"))
    assert raised.kind == "builtins.MemoryError"


def test_a_chain_of_tracebacks() -> None:
    text = python(USER, "KeyError: 'a'").rstrip() + CHAIN + python(WORKER + USER, "shop.LostError: it is lost")
    outer, inner = python_text.exceptions(text)
    assert (outer.kind, outer.link) == ("shop.LostError", Link.OUTERMOST)
    assert (inner.kind, inner.link) == ("builtins.KeyError", Link.CAUSE)


def test_a_message_that_imitates_a_chain_is_a_message() -> None:
    """Spark's worker catches an exception in its `main`: nothing that follows is another exception."""
    lie = "no" + CHAIN + python(USER, "ConnectionRefusedError: refused")
    (raised,) = python_text.exceptions(python(WORKER + USER, f"ValueError: {lie}"))
    assert raised.kind == "builtins.ValueError"
    assert "ConnectionRefusedError" in raised.message


def test_a_failure_of_spark() -> None:
    evidence = evidence_of_text(java(python(USER, "ZeroDivisionError: division by zero")))
    assert evidence is not None
    outer, inner = ["StreamingQueryException", "ZeroDivisionError"], ["PythonException", "ZeroDivisionError"]
    assert [raised.name for raised in evidence.chain] == [*outer, *inner]
    assert evidence.chain[2].condition == "PYTHON_EXCEPTION" and evidence.chain[2].sqlstate == "38000"


def test_an_executors_exception_that_only_the_message_has() -> None:
    text = (
        "org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed 4 times, most "
        "recent failure: Lost task 0.3 in stage 1.0 (TID 1) (10.0.0.7 executor 1): shop.pay.RefusedException: no card\n"
        "\tat shop.pay.Card.charge(Card.java:7)\n"
        "\nDriver stacktrace:\n"
        "\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:1)\n"
    )
    assert kinds(text) == ["org.apache.spark.SparkException", "shop.pay.RefusedException"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []), ("nothing has happened", []), ("ValueError: no such city", ["builtins.ValueError"]),
        ("2026-11-25 INFO\nshop.LostError: it is lost\n", ["shop.LostError"]),
        (": java.net.ConnectException: no\n\tat java.base/sun.nio.ch.Net.a(N.java:1)", ["java.net.ConnectException"]),
    ],
)  # fmt: skip
def test_other_texts(text: str, expected: list[str]) -> None:
    assert kinds(text) == expected


def test_a_crash_in_native_code_names_the_line() -> None:
    message = (
        "Python worker exited unexpectedly (crashed): Fatal Python error: Segmentation fault\n\n"
        'Current thread 0x00007f (most recent call first):\n  File "/usr/lib/python3.11/ctypes/__init__.py", line 5 in '
        'string_at\n  File "/home/me/flights.py", line 12 in half\n\nThread 0x00007e (most recent call first):\n'
        '  File "/home/me/other.py", line 1 in f\n'
    )
    found = python_text.crash(message)
    assert found is not None and found.kind == "signal.SegmentationFault"
    assert [frame.owner for frame in found.frames] == [Owner.STANDARD, Owner.USER]


@pytest.mark.parametrize(
    ("path", "owner"),
    [
        ("/home/me/flights.py", Owner.USER), ("flights.py", Owner.USER), ("/tmp/ipykernel_12/34.py", Owner.USER),
        ("<ipython-input-1-2>", Owner.USER), ("/tmp/spark-1/userFiles-2/site-packages/rates.py", Owner.USER),
        ("/opt/lib/python3.11/site-packages/shop/pay.py", Owner.USER),
        ("/opt/lib/python3.11/site-packages/pandas/core/frame.py", Owner.LIBRARY),
        ("pandas/_libs/hashtable.pyx", Owner.LIBRARY),
        ("/opt/spark/python/lib/pyspark.zip/pyspark/worker.py", Owner.SPARK),
        ("/opt/lib/python3.11/site-packages/py4j/protocol.py", Owner.SPARK),
        ("/opt/lib/python3.11/site-packages/spark_ext/asynchronous.py", Owner.SPARK_EXT),
        ("/usr/lib/python3.11/socket.py", Owner.STANDARD), ("<frozen importlib._bootstrap>", Owner.STANDARD),
    ],
)  # fmt: skip
def test_the_owner_of_a_file(path: str, owner: Owner) -> None:
    assert owner_of_file(path, user_packages=("shop",)) is owner


def test_what_six_compiles_is_not_the_users_line() -> None:
    """Unlike a function that was given to `python -c`."""
    (found,) = python_text.exceptions(
        "Traceback (most recent call last):\n"
        '  File "<string>", line 3, in written\n'
        '  File "/opt/lib/python3.11/site-packages/dateutil/parser/_parser.py", line 1340, in parse\n'
        '  File "<string>", line 3, in raise_from\n'
        "dateutil.parser._parser.ParserError: day is out of range for month: 29 Feb 2023\n"
    )
    assert [frame.owner for frame in found.frames] == [Owner.LIBRARY, Owner.LIBRARY, Owner.USER]


@pytest.mark.parametrize(
    ("name", "owner"),
    [
        ("java.net.Socket", Owner.STANDARD), ("java.base/java.net.Socket", Owner.STANDARD),
        ("org.apache.spark.rdd.RDD", Owner.SPARK), ("org.apache.spark.sql.delta.OptimisticTransaction", Owner.LIBRARY),
        ("org.apache.kafka.clients.NetworkClient", Owner.LIBRARY), ("shop.pay.Card", Owner.USER),
    ],
)  # fmt: skip
def test_the_owner_of_a_class(name: str, owner: Owner) -> None:
    assert owner_of_class(name) is owner


SPARK = "org.apache.spark.rdd."


@pytest.mark.parametrize(
    ("text", "function", "line", "owner"),
    [
        ("java.net.Socket.connect(Socket.java:12)", "java.net.Socket.connect", 12, Owner.STANDARD),
        ("\tat java.base/java.lang.Thread.run(Thread.java:840)", "java.lang.Thread.run", 840, Owner.STANDARD),
        (
            f"{SPARK}RDD$$Lambda$3044/0x00007f40ccf3d2e8.apply(Unknown)", f"{SPARK}RDD$$Lambda$3044.apply", 0,
            Owner.SPARK,
        ),
        ("app//shop.pay.Card.<init>(Card.java)", "shop.pay.Card.<init>", 0, Owner.USER),
    ],
)  # fmt: skip
def test_a_frame_of_java(text: str, function: str, line: int, owner: Owner) -> None:
    found = java_text.frame(text)
    assert found is not None and (found.function, found.line, found.owner) == (function, line, owner)


@pytest.mark.parametrize(
    ("reason", "type"),
    [
        ("Command exited with code 137", "RESOURCE"), ("Command exited with code 52", "RESOURCE"),
        ("Command exited with code 1370", "SYSTEM"), ("Command exited with code 134", "SYSTEM"),
        ("Remote RPC client disassociated. Likely due to containers exceeding thresholds", "SYSTEM"),
    ],
)  # fmt: skip
def test_an_executor_that_has_ended(reason: str, type: str) -> None:
    said = (
        "Job aborted due to stage failure: Task 0 in stage 0.0 failed 4 times, most recent failure: Lost task 0.3 in "
        "stage 0.0 (TID 3) (10.0.0.7 executor 3): ExecutorLostFailure (executor 3 exited caused by one of the running "
        f"tasks) Reason: {reason}\nDriver stacktrace:"
    )
    evidence = Evidence((Raised("org.apache.spark.SparkException", said),))
    assert evidence.exits == (f"executor 3: {reason}",)
    assert Classifier().judge(evidence).type == type
    # The same words of a user's exception are words.
    assert Evidence((Raised("builtins.ValueError", said),)).exits == ()


def test_a_record_has_what_a_hidden_traceback_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        try:
            dict[str, str]()["a"]
        except KeyError as error:
            raise ConnectionResetError(104, "reset by peer") from error

    for name, value in errors.for_workers().items():
        monkeypatch.setenv(name, value)
    text = "PythonException: hidden" + record.written(raised_by(fails))
    outer, inner = record.read(text) or ()
    assert (outer.kind, outer.errno, outer.link) == ("builtins.ConnectionResetError", 104, Link.OUTERMOST)
    assert (outer.frames[0].owner, outer.frames[0].function) == (Owner.USER, "fails")
    assert (inner.kind, inner.link) == ("builtins.KeyError", Link.CAUSE)
    assert record.without(text) == "PythonException: hidden\n"


CALLBACK = (
    "An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):\n"
    '  File "/venv/site-packages/py4j/clientserver.py", line 644, in _call_proxy\n    call()\n'
    '  File "/home/me/flights.py", line 3, in write\n    batch.collect()\n'
)


def test_what_a_worker_raised_below_a_batch_is_none_of_javas(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise errors.StorageError("no broker could be reached in 2 s", operator="source 'clicks'")

    with monkeypatch.context() as worker:
        for name, value in errors.for_workers().items():
            worker.setenv(name, value)
        failure = raised_by(fails)
        quoted = "".join(traceback.format_exception(failure)) + record.written(failure)
    said = f"{CALLBACK}pyspark.errors.exceptions.captured.PythonException: An exception was thrown:\n{quoted}"
    chain = java_text.reported(Raised("py4j.Py4JException", said))
    assert [one.name for one in chain] == ["PythonException", "SparkException", "StorageError"]
    assert (chain[-1].code, chain[-1].by, chain[-1].frames[0].function) == ("STORAGE", "raise", "fails")


OURS = '  File "/venv/spark_ext/control/http_client.py", line 9, in _call\n    raise StorageError(what)\n'
SAID = "spark_ext.errors.StorageError: [STORAGE] the server cannot be reached"


@pytest.mark.parametrize(
    ("frames", "said", "code"),
    [
        (OURS, SAID, "STORAGE"), ("", SAID, ""), (OURS, f"ValueError: {SAID}", ""),
        ("", f"ValueError: x\n\n{OURS}{SAID}", ""),
    ],
)  # fmt: skip
def test_an_error_of_this_package_in_the_drivers_own_python(frames: str, said: str, code: str) -> None:
    """It has no mark: whose frames it comes from tells."""
    (found,) = java_text.reported(Raised("py4j.Py4JException", f"{CALLBACK}{frames}{said}"))
    assert found.code == code


def test_a_record_of_other_workers_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    failure = ValueError("x")
    assert record.written(failure) == "", "not a worker"
    ((variable, mark),) = errors.for_workers().items()
    monkeypatch.setenv(variable, "0" * 8)
    text = record.written(failure)
    monkeypatch.setenv(variable, mark)
    assert record.read(text) is None


words = st.text(max_size=30)
frames = st.builds(Frame, st.sampled_from(Owner), words, st.integers(0, 99), words)
exceptions = st.builds(
    Raised, words, words, st.sampled_from(Link), st.lists(frames, max_size=4).map(tuple),
    st.lists(words, max_size=3).map(tuple), words, words, st.integers(0, 200), words, words,
)  # fmt: skip


@given(st.lists(exceptions, min_size=1, max_size=5).map(tuple))
def test_evidence_survives_the_ledger(chain: tuple[Raised, ...]) -> None:
    evidence = Evidence(chain)
    assert Evidence.from_json(json.loads(json.dumps(evidence.to_json()))) == evidence


@given(st.text(max_size=400))
def test_no_message_becomes_an_exception(message: str) -> None:
    """Whatever a user's exception says, it is one exception of the class that was raised."""

    def fails() -> None:
        raise LookupError(message)

    lines = traceback.format_exception(raised_by(fails))
    found = python_text.exceptions("".join([lines[0], WORKER, *lines[1:]]))
    assert [raised.kind for raised in found] == ["builtins.LookupError"]


@given(st.text(max_size=2000))
def test_any_text_can_be_read(text: str) -> None:
    for read in (evidence_of_text, java_text.exceptions, python_text.exceptions, record.read):
        read(text)
