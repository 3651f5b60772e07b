"""What the standard library and the clients of databases, brokers and clouds say, in their own words.

Most of these libraries are not installed here: the names and messages are those that they document.
"""

import array
import ast
import base64
import builtins
import bz2
import email.utils
import enum
import fractions
import gzip
import io
import ipaddress
import json
import os
import plistlib
import queue
import re
import shlex
import socket
import sqlite3
import ssl
import struct
import subprocess
import sys
import tarfile
import traceback
import unicodedata
import urllib.parse
import uuid
import wave
import xml.sax
import zoneinfo
from collections.abc import Callable
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import anyio
import deltalake
import numpy as np
import pandas as pd
import pyarrow as pa
import pydantic
import pytest
import yaml
from confluent_kafka import Consumer, Producer
from confluent_kafka.serialization import IntegerDeserializer

from spark_ext.failures import python_error, python_text
from spark_ext.failures.classifier import Classifier
from spark_ext.failures.evidence import Evidence, Frame, Link, Owner, Raised
from spark_ext.failures.labels import FailureType
from spark_ext.failures.owners import owner_of_file
from spark_ext.failures.verdict import Verdict

CLASSIFIER = Classifier()
GROUP: Any = getattr(builtins, "ExceptionGroup", None)
needs_groups = pytest.mark.skipif(GROUP is None, reason="this Python has no groups of exceptions")
USER = (Frame(Owner.USER, "/home/me/shop.py", 12, "write"),)
BATCH = (*USER, Frame(Owner.SPARK, "/venv/pyspark/sql/utils.py", 163, "call"))


class Color(enum.Enum):
    RED = 1


class Order(pydantic.BaseModel):
    pieces: int


VALUES: list[Callable[[], object]] = [
    lambda: int("12 pieces"), lambda: int("9" * 5000), lambda: int(float("nan")), lambda: float("1,50"),
    lambda: Decimal("1,50"), lambda: fractions.Fraction("half"), lambda: date.fromisoformat("2024-13-01"),
    lambda: date.fromisocalendar(2024, 60, 1), lambda: date(2024, 1, 1) + timedelta(days=10**8),
    lambda: datetime.strptime("tomorrow", "%Y-%m-%d"), lambda: datetime.strptime("2024-01-01 noon", "%Y-%m-%d"),
    lambda: zoneinfo.ZoneInfo("Mars/Olympus"), lambda: uuid.UUID("customer 1"), lambda: ipaddress.ip_address("10.0.0"),
    lambda: ipaddress.ip_network("10.0.0.1/8"), lambda: base64.b64decode("abc"), lambda: bytes.fromhex("zz"),
    lambda: struct.unpack("<I", b"ab"), lambda: json.loads("{"), lambda: json.dumps(float("nan"), allow_nan=False),
    lambda: ast.literal_eval("price()"), lambda: urllib.parse.urlsplit("http://[shop"), lambda: Color("blue"),
    lambda: b"\xff".decode(), lambda: "é".encode("ascii"), lambda: gzip.decompress(gzip.compress(b"order" * 9)[:-10]),
    lambda: bz2.decompress(b"an order"), lambda: pd.to_datetime(pd.Series(["tomorrow"])),
    lambda: pd.to_datetime(pd.Series(["1.1.2020"]), format="%Y"), lambda: pd.to_numeric(pd.Series(["ten"])),
    lambda: pd.Series(["ten"]).astype(int), lambda: pd.Series([1.5, None]).astype(int), lambda: pd.Timedelta("a while"),
    lambda: pd.read_csv(io.StringIO("a\n1,2,3\n1\n1,2,3,4")), lambda: pd.read_json(io.StringIO("{")),
    lambda: np.array(["ten"]).astype(float), lambda: np.datetime64("tomorrow"),
    lambda: pa.array(["ten"]).cast(pa.int64()),
    lambda: Order(pieces="ten"),  # type: ignore[arg-type]
    lambda: float.fromhex("zz"), lambda: bytes([300]), lambda: (300).to_bytes(1, "big"),
    lambda: array.array("b", [300]),
    *([lambda: np.int8(300)] if int(np.__version__.partition(".")[0]) >= 2 else []),  # before, only a warning
    lambda: chr(-1), lambda: unicodedata.lookup("no such"), lambda: email.utils.parsedate_to_datetime("tomorrow"),
    lambda: socket.inet_aton("10.0.0.0.1"), lambda: shlex.split('"'), lambda: ast.literal_eval("{'a': "),
    lambda: plistlib.loads(b"an order"),
    lambda: wave.open(io.BytesIO(b"an order")),  # noqa: SIM115
    lambda: tarfile.open(fileobj=io.BytesIO(b"an order")),  # noqa: SIM115
    lambda: xml.sax.parseString("<order>", xml.sax.ContentHandler()), lambda: base64.b85decode("x\x00~~"),
    lambda: pd.Timestamp("2024-03-31 02:30").tz_localize("Europe/Berlin"),
    lambda: pd.Series(["maybe"]).astype("boolean"), lambda: np.timedelta64("soon"),
    lambda: Decimal("1e999999") * Decimal("1e999999"), lambda: pa.ipc.open_stream(b"an order"),
    lambda: IntegerDeserializer()(b"1"),
]  # fmt: skip

CODE: list[Callable[[], object]] = [
    lambda: dict[str, int]()["customer"], lambda: [].pop(), lambda: 1 // 0,
    lambda: None.name,  # type: ignore[attr-defined]
    lambda: max([]), lambda: json.dumps({1}), lambda: pd.DataFrame({"a": [1]})["b"],
    lambda: pd.DataFrame({"a": [1]}).assign(b=[1, 2]), lambda: np.array([1, 2]) + np.array([1, 2, 3]),
    lambda: sqlite3.connect(":memory:").execute("selec 1"),
    lambda: sqlite3.connect(":memory:").execute("SELECT ?", (1, 2)),
    lambda: pa.concat_tables([pa.table({"a": [1]}), pa.table({"b": [1]})]), lambda: pa.table({"a": [1]})["b"],
    lambda: queue.Queue[int]().get_nowait(), lambda: re.compile("("), lambda: eval("1 +"),
    lambda: subprocess.run(["false"], check=True),
]  # fmt: skip

SETTINGS: list[Callable[[], object]] = [
    lambda: os.environ["SHOP_API_KEY_THAT_IS_NOT_SET"], lambda: ssl.create_default_context(cafile="/etc/shop/ca.pem"),
    lambda: ssl.create_default_context(cafile=__file__), lambda: sqlite3.connect("/no/such/folder/orders.db"),
    lambda: sqlite3.connect(":memory:").execute("SELECT * FROM ordres"), lambda: exec("from os import no_such_name"),
    lambda: Consumer({}), lambda: Producer({"no.such.setting": 1}), lambda: pd.read_csv("/no/such/orders.csv"),
    lambda: deltalake.DeltaTable("/no/such/table"),
]  # fmt: skip


def raised_by(action: Callable[[], object]) -> BaseException:
    try:
        action()
    except BaseException as failure:
        return failure
    raise AssertionError("nothing was raised")


def judged(kind: str, message: str, frames: tuple[Frame, ...], **given: Any) -> Verdict:
    return CLASSIFIER.judge(Evidence((Raised(kind, message, frames=frames, **given),)))


def seen(failure: BaseException) -> tuple[str, str]:
    """The type by the exception itself, and by its traceback alone."""
    text = "".join(traceback.format_exception(failure))
    live = Evidence(tuple(python_error.exceptions(failure)))
    return CLASSIFIER.judge(live).type.value, CLASSIFIER.judge(Evidence(python_text.exceptions(text))).type.value


CALLS = {"USER_DATA": VALUES, "USER_CODE": CODE, "CONFIGURATION": SETTINGS}


@pytest.mark.parametrize(("type", "action"), [(type, action) for type, actions in CALLS.items() for action in actions])
def test_what_a_call_raises(type: str, action: Callable[[], object]) -> None:
    assert seen(raised_by(action)) == (type, type)


@pytest.mark.parametrize(
    "failure",
    [
        ValueError("time data 'tomorrow' does not match format '%Y'"),
        ValueError("invalid literal for int() with base 10: 'x'"),
        RuntimeError("can't start new thread"),
        sqlite3.OperationalError("no such table: orders"),
        OSError("Could not find a suitable TLS CA certificate bundle, invalid path: x"),
    ],
)
def test_what_a_users_own_statement_raises_is_the_users_fault(failure: Exception) -> None:
    def raises() -> None:
        raise failure

    assert seen(raised_by(raises)) == ("USER_CODE", "USER_CODE")


def test_what_raised_an_exception() -> None:
    def states() -> None:
        raise ValueError

    def asserts(this: bool = False) -> None:
        assert this

    def on_a_line() -> None:
        if True: raise ValueError  # noqa: E701  # fmt: skip

    for action, by in ((states, "raise"), (asserts, "raise"), (on_a_line, "raise"), (lambda: int("x"), "call")):
        failure = raised_by(action)
        (read,) = python_text.exceptions("".join(traceback.format_exception(failure)))
        assert (python_error.raised_by(failure), read.by) == (by, by)
    assert python_error.raised_by(ValueError("never raised")) == ""


@needs_groups
def test_what_is_inside_a_group_decides() -> None:
    async def ask() -> None:
        with socket.socket() as free:  # a port that nobody listens at
            free.bind(("127.0.0.1", 0))
            socket.create_connection(free.getsockname())

    async def both() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)

    def nested() -> None:
        raise GROUP("two\nlines", [raised_by(lambda: anyio.run(both)), KeyError("a")])

    failure = raised_by(nested)
    assert seen(failure) == ("NETWORK", "NETWORK")
    live = python_error.exceptions(failure)
    text = python_text.exceptions("".join(traceback.format_exception(failure)))
    for chain in (live, text):
        assert [one.name for one in chain] == ["ExceptionGroup", "ExceptionGroup", "ConnectionRefusedError"]
        assert [one.link for one in chain] == [Link.OUTERMOST, Link.CAUSE, Link.CAUSE]
    assert text[0].message == "two\nlines (2 sub-exceptions)"
    assert [frame.function for frame in text[2].frames] == [frame.function for frame in live[2].frames]


@needs_groups
def test_a_group_of_what_was_never_raised_or_with_a_cause() -> None:
    def fails() -> None:
        try:
            raise KeyError("b")
        except KeyError as error:
            raise GROUP("all", [ConnectionResetError(104, "reset")]) from error

    assert seen(raised_by(fails)) == ("NETWORK", "NETWORK")


def test_exceptions_without_a_message_or_number_are_read() -> None:
    class GoneError(Exception):
        def __str__(self) -> str:
            raise ConnectionRefusedError(111, "the JVM has gone")

    def fails() -> None:
        raise GoneError

    (read,) = python_error.exceptions(raised_by(fails))
    assert (read.name, read.message) == ("GoneError", "<no message: ConnectionRefusedError>")
    assert python_error.errno_of(OSError("S3", "bucket")) == 0


@pytest.mark.parametrize(
    ("code", "type"), [(143, "CANCELED"), (130, "CANCELED"), (1, "USER_CODE"), ("143 rows", "USER_CODE")]
)
def test_a_signals_own_code_is_a_cancellation(code: int | str, type: str) -> None:
    assert seen(raised_by(lambda: sys.exit(code))) == (type, type)


@pytest.mark.parametrize(
    ("frames", "type"),
    [
        ((("/home/me/shop.py", "ended"), ("/usr/lib/python3.11/socket.py", "readinto")), "CANCELED"),
        ((("/home/me/shop.py", "ended"), ("/venv/spark_ext/jobs/waiting.py", "wait")), "CANCELED"),
        ((("/home/me/shop.py", "ended"), ("/usr/lib/python3/x.py", "f"), ("/v/pyspark/w.py", "main")), "USER_CODE"),
    ],
)
def test_a_handler_that_ends_the_process_was_called_by_a_signal(frames: tuple[tuple[str, str], ...], type: str) -> None:
    stack = tuple(Frame(owner_of_file(file), file, 1, function) for file, function in frames)
    assert judged("builtins.SystemExit", "0", stack).type.value == type


@pytest.mark.parametrize("link", [Link.CONTEXT, Link.CAUSE])
def test_what_pyspark_raises_for_another_is_judged_by_the_other(link: Link) -> None:
    """It names no cause when a method of a table function fails."""
    worker = Frame(Owner.SPARK, "/venv/pyspark/worker.py", 1, "func")
    shown = Raised("pyspark.errors.exceptions.base.PySparkRuntimeError", "[UDTF_EXEC_ERROR] x", frames=(worker, worker))
    inner = Raised("builtins.ConnectionRefusedError", "refused", link, (*USER, worker))
    found = CLASSIFIER.judge(Evidence((shown, inner)))
    assert (found.type.value, found.place) == ("NETWORK", USER[0].place)


def test_a_missing_module_of_an_object_is_no_matter_of_pickling() -> None:
    loads = Frame(Owner.SPARK, "/venv/pyspark/serializers.py", 1, "loads")
    assert judged("builtins.ModuleNotFoundError", "No module named 'x'", (loads,)).type.value == "CONFIGURATION"


@pytest.mark.parametrize(
    ("code", "said", "type", "decision"),
    [
        ("FENCED", "incarnation 2 of the job has been started; this is incarnation 1", "FENCED", "stop"),
        ("RUNNING", "job 'shop' is running as incarnation 1", "FENCED", "stop"),
        ("STATE", "query 'load' was 'read' in the last start", "STATE", "ask"),
        ("STATE", "this is not the target that was claimed: it has another id", "SINK", "restart"),
        ("STATE", "the state directory is partly deleted", "STATE", "restore"),
        ("OFFSET", "the checkpoint holds an offset of source 'a' in the place of this one", "CHECKPOINT", "ask"),
        ("OFFSET", "offset version 9 is not known", "CHECKPOINT", "restore"),
        ("STORAGE", "the ledger cannot be written: No space left on device", "RESOURCE", "restart"),
        ("STORAGE", "PostgreSQL is unavailable: connection refused", "NETWORK", "restart"),
        ("DATA", "row 1, column 'name' is too long", "USER_DATA", "stop"),
        ("UNSUPPORTED_TABLE", "the table has deletion vectors", "CONFIGURATION", "stop"),
        ("REPLAY", "the file of the interrupted epoch has changed", "SOURCE", "stop"),
        ("SPARK_LOST", "Spark's JVM, process 7, has died", "SYSTEM", "stop"),
        ("SPARK_LOST", "the Spark session was stopped while the job was running", "CANCELED", "stop"),
    ],
)
def test_what_this_package_says(code: str, said: str, type: str, decision: str) -> None:
    frames = (Frame(Owner.SPARK_EXT, "/venv/spark_ext/x.py", 1, "f"), *USER)
    found = judged("spark_ext.errors.X", said, frames, code=code)
    assert (found.type.value, found.origin.value) == (type, "library")
    assert CLASSIFIER.decision(found.labels).do.value == decision


def test_an_error_of_this_package_without_frames_is_the_librarys() -> None:
    waiting = (Frame(Owner.SPARK_EXT, "/venv/spark_ext/jobs/job.py", 1, "await_termination"), *USER)
    failed = Raised("spark_ext.errors.JobFailedError", "[JOB_FAILED] x", frames=waiting, by="raise")
    fenced = Raised("spark_ext.errors.FencedError", "[FENCED] x", Link.CAUSE, code="FENCED")
    found = CLASSIFIER.judge(Evidence((failed, fenced)))
    assert (found.type.value, found.origin.value) == ("FENCED", "library")


@pytest.mark.parametrize("number", [5, 16, 116], ids=["input/output error", "busy", "stale handle"])
def test_a_device_that_fails_is_no_fault_of_who_uses_it(number: int) -> None:
    found = judged("builtins.OSError", os.strerror(number), USER, errno=number, by="call")
    assert found.type is FailureType.SYSTEM and CLASSIFIER.decision(found.labels).do.value == "restart"


SAID = yaml.safe_load(Path(__file__).with_name("said.yaml").read_text())


@pytest.mark.parametrize(("kind", "message", "type"), SAID)
def test_what_a_client_says(kind: str, message: str, type: str) -> None:
    for frames in (USER, BATCH):
        found = judged(kind, message, frames)
        assert found.type.value == type, found.rule


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("psycopg.errors.LockNotAvailable", "canceling statement due to lock timeout"),
        ("psycopg.errors.DeadlockDetected", "deadlock detected"),
        ("psycopg2.errors.SerializationFailure", "could not serialize access due to concurrent update"),
        ("sqlite3.OperationalError", "database is locked"),
        ("pymysql.err.OperationalError", "(1205, 'Lock wait timeout exceeded; try restarting transaction')"),
    ],
)
def test_a_target_that_others_hold_is_tried_again(kind: str, message: str) -> None:
    assert judged(kind, message, BATCH, bases=("psycopg.OperationalError",)).type.value == "SINK"


def test_words_in_a_statement_or_a_row_decide_nothing() -> None:
    quoted = "(sqlite3.OperationalError) too clever\n[SQL: INSERT INTO t VALUES ('no such table')]"
    assert judged("sqlalchemy.exc.OperationalError", quoted, BATCH).rule == "sink.database"


@pytest.mark.parametrize(
    ("kind", "by", "origin"),
    [
        ("cimpl.KafkaException", "", "dependency"), ("pyodbc.Error", "call", "dependency"),
        ("cimpl.KafkaException", "raise", "user"), ("sqlite3.OperationalError", "call", "user"),
        ("builtins.ValueError", "call", "user"),
    ],
)  # fmt: skip
def test_whose_an_exception_without_frames_of_its_own_is(kind: str, by: str, origin: str) -> None:
    assert judged(kind, "", USER, by=by).origin.value == origin


JACKSON, DELTA, COMMIT = "com.fasterxml.jackson.", "org.apache.spark.sql.delta.", "OptimisticTransactionImpl.doCommit"
OFFSET_FORMAT = "DELTA_INVALID_SOURCE_OFFSET_FORMAT"


def delta(kind: str, *functions: str, **given: Any) -> Evidence:
    frames = tuple(Frame(Owner.LIBRARY, "x.scala", 1, f"{DELTA}{name}") for name in functions)
    return Evidence((Raised(kind, frames=frames, **given),))


@pytest.mark.parametrize(
    ("evidence", "type", "decision"),
    [
        (delta(f"{JACKSON}core.JsonParseException", "actions.Action$.fromJson"), "SOURCE", "restart"),
        (delta(f"{JACKSON}databind.JsonMappingException", "util.JsonUtils$.fromJson", COMMIT), "SINK", "restart"),
        (delta(f"{DELTA}X", "sources.DeltaSourceOffset$.apply", condition=OFFSET_FORMAT), "CHECKPOINT", "restore"),
    ],
)
def test_what_is_damaged_in_delta(evidence: Evidence, type: str, decision: str) -> None:
    found = CLASSIFIER.judge(evidence)
    assert (found.type.value, CLASSIFIER.decision(found.labels).do.value) == (type, decision)
