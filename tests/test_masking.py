"""Secrets in errors, their causes, log lines and rows of the ledger. Without Spark."""

import json
import logging
import pickle
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import StructType

import spark_ext
from spark_ext import masking
from spark_ext.errors import DataError, SparkExtError, StorageError
from spark_ext.failures import record
from spark_ext.failures.evidence import Evidence, Link, Raised
from spark_ext.ledger import Ledger
from spark_ext.ledger.incarnation import start_incarnation
from spark_ext.ledger.schema import ExecutionStateRow, IncidentRow, JobRow
from spark_ext.ledger.write_behind import WriteBehind
from spark_ext.ledger.writer import LedgerWriter
from spark_ext.model.offsets import Range
from spark_ext.options import Options
from spark_ext.queries import operators
from spark_ext.sinks.contract import SinkOptions, TwoPhaseCommitSink
from spark_ext.sinks.delta_2pc import DeltaTwoPhaseCommit
from spark_ext.sinks.files_2pc.sink import FilesTwoPhaseCommit
from spark_ext.sinks.http_2pc.sink import HttpTwoPhaseCommit
from spark_ext.sinks.kafka_2pc.sink import KafkaTwoPhaseCommit
from spark_ext.sinks.postgres_2pc.sink import PostgresTwoPhaseCommit
from spark_ext.sinks.runtime.writer import EpochWriter, Written
from spark_ext.sources.contract import ChannelSource
from spark_ext.sources.delta_snapshot.source import DeltaSnapshot
from spark_ext.sources.files.source import Files
from spark_ext.sources.kafka_range.source import KafkaRange
from spark_ext.sources.postgres.source import Postgres
from spark_ext.sources.runtime.reader import ChannelReader, ReadTask

CONNECTORS: list[type[TwoPhaseCommitSink] | type[ChannelSource]] = [
    DeltaTwoPhaseCommit, FilesTwoPhaseCommit, HttpTwoPhaseCommit, KafkaTwoPhaseCommit, PostgresTwoPhaseCommit,
    DeltaSnapshot, Files, KafkaRange, Postgres,
]  # fmt: skip
SECRET = 'S3cr"et %-valu\\e'
SECRETS = [
    (connector, name)
    for connector in CONNECTORS
    for name in connector.options_type.model_fields
    if connector.options_type.is_secret(name)
]


def shown(option: str) -> str:
    if option in ("headers", "client_options", "storage_options"):
        return json.dumps({"some.name": SECRET})
    if option == "dsn":
        quoted = SECRET.replace("\\", r"\\")
        return f"host=db user=me password='{quoted}' dbname=x"
    return SECRET


@pytest.mark.parametrize(("connector", "option"), SECRETS, ids=lambda value: getattr(value, "__name__", value))
def test_every_secret_option_is_masked(connector: type[TwoPhaseCommitSink] | type[ChannelSource], option: str) -> None:
    """As soon as options are parsed, even if one of them is refused."""
    try:
        connector({"uid": "a", option: shown(option), "no-such-option": "x"})
    except SparkExtError as refused:
        assert SECRET not in str(refused)
    said = f"no {SECRET}, {SECRET!r}, {json.dumps(SECRET)}, {shown(option)}"
    for text in (masking.mask(said), str(DataError(said)), str(StorageError("x", kept=said, do=said, operator=said))):
        assert SECRET not in text and repr(SECRET)[1:-1] not in text and json.dumps(SECRET)[1:-1] not in text
        assert masking.HIDDEN in text


def test_every_kind_of_secret_option_is_there() -> None:
    assert {option for _, option in SECRETS} >= {
        "client_options", "dsn", "headers", "password", "storage_options", "token",
    }  # fmt: skip


class TokenOptions(SinkOptions):
    token: str = ""


class Quoting(TwoPhaseCommitSink):
    options_type = TokenOptions
    options: TokenOptions

    @classmethod
    def name(cls) -> str:
        return "quoting"

    def write(self, *given: Any) -> Any:
        raise self._library()

    def commit(self, *given: Any) -> Any:
        try:
            raise self._library()
        except ValueError as problem:
            raise DataError("the header was refused") from problem

    def claim(self, claim: Any) -> None:
        raise self._library()

    def _library(self) -> Exception:
        return ValueError(f"illegal header value {f'Bearer {self.options.token} '.encode()!r}")


def raised(call: Callable[[], object]) -> Exception:
    """What a call raises, and no stack trace of it has the secret."""
    with pytest.raises(Exception) as caught:
        call()
    text = "".join(traceback.format_exception(caught.value))
    assert "t0ken-of-a-sink" not in text and masking.HIDDEN in text
    return caught.value


def test_no_cause_of_an_error_in_a_worker_shows_a_secret() -> None:
    sent = pickle.dumps(Quoting({"uid": "out", "token": "t0ken-of-a-sink"}))
    masking.forget()  # another process
    writer = EpochWriter(pickle.loads(sent), StructType())
    refused = raised(lambda: writer.commit([Written("q", 0, 1, "prepared")], 0))
    assert isinstance(refused, DataError) and refused.what == "the header was refused"
    assert "illegal header value" in str(refused.__cause__)
    error = raised(lambda: masking.guarded()(pickle.loads(sent).write)())
    assert str(error).splitlines()[-1] == "ValueError: illegal header value b'Bearer *** '"


class QuotingSource(Postgres):
    def read(self, *given: Any) -> Iterator[Any]:
        raise OSError(f"no access to {self.given['dsn']}")


def test_reading_shows_no_secret() -> None:
    source = QuotingSource({"uid": "in", "dsn": "postgresql://me:t0ken-of-a-sink@db/x", "table": "orders"})
    reader = ChannelReader(source, StructType())
    raised(lambda: list(reader.read(ReadTask((Range("c", {}, 0, 1),)))))


def test_an_error_without_a_secret_passes_as_it_is() -> None:
    cause = KeyError("a")
    with pytest.raises(ValueError, match="nothing secret") as caught, masking.guarded():
        raise ValueError("nothing secret") from cause
    assert caught.value.__cause__ is cause


def test_the_ledger_and_the_log_take_no_secret(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Texts of Spark, of servers and of users, whoever hands them over."""
    caplog.set_level(logging.DEBUG)
    TokenOptions.parse("quoting", {"uid": "out", "token": "t0ken-of-a-sink"})
    ledger = Ledger(str(tmp_path / "state"))
    behind = WriteBehind(LedgerWriter(ledger, start_incarnation(ledger, "job")), "job")
    said = "java.io.IOException: t0ken-of-a-sink was refused"
    behind.incident("q", "FAILURE", said, said, {"stack": [said]})
    behind.state("q", "FAILED", said)
    behind.end(said)
    try:
        raise ValueError(said)
    except ValueError:
        masking.logger("spark_ext.sink").exception("with a stack: %s", said)
    for text in (str([ledger.table(kind).rows() for kind in (IncidentRow, ExecutionStateRow, JobRow)]), caplog.text):
        assert "t0ken-of-a-sink" not in text and text.count("*** was refused") >= 2


def test_what_is_masked_of_other_options_and_what_is_not() -> None:
    jaas = 'x required password="jaas-pass-1";'
    operators.keep_secret("kafka", {"kafka.sasl.jaas.config": jaas, "topic": "shown-topic"})
    operators.keep_secret("jdbc", {"url": "jdbc:postgresql://h/d?password=in-the-url-1", "password": "other-pw-1"})
    assert masking.mask("jaas-pass-1 in-the-url-1 other-pw-1 shown-topic") == "*** *** *** shown-topic"
    # Words of messages: settings beside secrets, and values too short to be secret.

    class Some(Options):
        secret_fields = frozenset({"headers"})
        headers: Any = None
        storage_options: Any = None

    Some.parse("x", {"uid": "a", "storage_options": '{"aws_region": "us-east-1", "allow_http": "true"}'})
    Some.parse("x", {"uid": "a", "headers": '{"X-Shop": "shop", "X-Version": "2", "X-Env": "abc"}'})
    assert masking.mask("us-east-1 true 2 abc shopping, shop_2, shop") == "us-east-1 true 2 abc shopping, shop_2, shop"


@pytest.mark.parametrize(
    "said",
    [
        "dbname=shop password={} port=1", "PASSWORD = '{}'", "postgresql://ann:{}@db/x", '{{"password": "{}"}}',
        "{{'X-Shop': '{}'}}", "api_key: {}", "illegal header value b'Bearer {}'", "password \"{}\" was refused",
    ],
)  # fmt: skip
@pytest.mark.parametrize("word", ["connection", "Order", "ADMIN"])
def test_a_secret_that_is_a_common_word_is_masked_as_a_value(word: str, said: str) -> None:
    masking.remember(word, "hunter2-hunter2")
    assert masking.mask(said.format(word)) == said.format("***")


def test_a_secret_that_is_a_common_word_stays_in_sentences() -> None:
    masking.remember("connection", "order", "hunter2-hunter2")
    text = "PostgreSQL is unavailable: connection refused. column 'order' of x.py:order, the key order, connection='%s'"
    assert masking.mask(f"{text} hunter2-hunter2") == f"{text} ***"
    assert str(StorageError("no connection")) == "[STORAGE] no connection"


def test_every_logger_of_the_package_masks() -> None:
    package = Path(spark_ext.__file__).parent
    made = [
        file.name
        for folder in (package, package / "sources", package / "sinks", package / "listeners")
        for file in folder.rglob("*.py")
        if 'getLogger("' in (text := file.read_text()) or "getLogger(__name__" in text
    ]
    assert made == []


PEM = "\n".join(["-----BEGIN PRIVATE KEY-----", *(f"{n}b3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAE{n}==" for n in range(3))])


def test_each_line_of_a_secret_is_masked() -> None:
    """Stack traces and logs indent lines, and quote one of them."""
    masking.remember(PEM)
    quoted = "".join(f"  | {line}\n" for line in PEM.splitlines())
    assert "b3Blb" not in masking.mask(quoted) and masking.mask(quoted).count("***") == 3
    assert masking.mask("expecting: -----BEGIN PRIVATE KEY-----") == "expecting: -----BEGIN PRIVATE KEY-----"


@pytest.mark.parametrize("at", range(0, 20, 3))
def test_a_text_is_masked_before_it_is_cut(at: int) -> None:
    """Half of a secret is one that nobody knows."""
    secret = "Kz7mQp2xWv9tRb4n"
    masking.remember(secret)

    def text(longest: int) -> str:
        kept = (longest - 20) // 2
        return "x" * (kept - at) + f" {secret} " + "y" * longest

    shown = json.dumps(Evidence((Raised("shop.Error", text(2_000), context=text(2_000)),)).to_json())
    try:
        raise ValueError(text(record._MESSAGE))
    except ValueError as error:
        shown += json.dumps(record._entry(error, Link.OUTERMOST))
    assert not any(secret[n : n + 4] in shown for n in range(len(secret) - 3))
