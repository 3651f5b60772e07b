"""The sink `http_2pc`: each epoch is sent to an HTTP receiver in requests with idempotency keys.

    frame.writeStream.format("http_2pc").options(uid="orders", url="https://shop/orders", outbox="state/outbox").start()

Tasks write their rows as JSON into an outbox; the driver records the epoch there (`outbox`), and only then sends it
(`client`). Exactly once requires a receiver that remembers keys: `docs/http_2pc.md` says for how long.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal
from urllib.parse import unquote_plus, urlsplit

from pydantic import Field, field_validator, model_validator
from pyspark.sql.types import StructType

from spark_ext import masking
from spark_ext.bad_rows.row import BadRow
from spark_ext.datafiles.location import check_for_delta
from spark_ext.errors import ConfigurationError, TransientError, refused
from spark_ext.failpoints import FailPoint, reach
from spark_ext.masking import logger
from spark_ext.options import Bytes, Milliseconds, Pairs, is_secret_parameter
from spark_ext.sinks.contract import Claim, CommitOutcome, Epoch, SinkOptions, Task, TwoPhaseCommitSink
from spark_ext.sinks.http_2pc.chunks import Chunk, Cut
from spark_ext.sinks.http_2pc.client import Sender, Wire, library, shown
from spark_ext.sinks.http_2pc.headers import check_value, checked, credentials_in_clear
from spark_ext.sinks.http_2pc.outbox import Outbox, placed, stage
from spark_ext.sinks.http_2pc.proxy import proxy_for
from spark_ext.sinks.http_2pc.rows import check_types
from spark_ext.sinks.runtime.aside import Aside

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_ext.datafiles.writer import DataFile


log = logger("spark_ext.http")


class HttpOptions(SinkOptions):
    """Options of `http_2pc`."""

    secret_fields: ClassVar[frozenset[str]] = frozenset({"headers", "storage_options"})

    identity_fields: ClassVar[frozenset[str]] = frozenset({"outbox", "url"})

    moving_fields: ClassVar[frozenset[str]] = frozenset({"url"})

    url: str
    """Address of the receiver: `http://` or `https://`, without credentials."""

    outbox: str = Field(min_length=1)
    """A durable folder that the driver and the executors share: a local path or a URI; sinks may share it."""

    commit_patience: Milliseconds = 600_000
    """As for every sink, with a higher default: a receiver that throttles requests asks for longer waits."""

    body: Literal["lines", "array"] = "lines"
    """JSON, one row per line (`application/x-ndjson`), or one array (`application/json`)."""

    batch_rows: int = Field(default=1_000, gt=0)
    """Maximum number of rows per request."""

    batch_bytes: Bytes = Field(default=1024**2, gt=0)
    """Maximum size of the rows of a request, bytes; a larger row is a request of its own."""

    method: Literal["POST", "PUT", "PATCH"] = "POST"
    """Method of the requests."""

    key_header: str = Field(default="Idempotency-Key", pattern=r"^[A-Za-z0-9-]+$")
    """Name of the header with the idempotency key."""

    conflict: Literal["retry", "done", "refuse"] = "retry"
    """Meaning of status 409: the same key is being processed; the request was taken before; or it is refused."""

    token: str | None = Field(default=None, repr=False)
    """Sent as `Authorization: Bearer`. Never shown or stored; preferably kept in the environment (`token_env`)."""

    token_env: str | None = None
    """Name of the driver's environment variable that contains the token."""

    headers: Pairs = Field(default_factory=dict, repr=False)
    """Further headers as a JSON object of strings. Never shown or stored."""

    headers_env: str | None = None
    """Name of the driver's environment variable that contains further headers as a JSON object."""

    timeout: Milliseconds = Field(default=30_000, gt=0)
    """Maximum duration of a request: connecting, sending, and the whole answer, ms."""

    patience: Milliseconds = 600_000
    """How long `Retry-After` may delay one request in total before the query fails, ms."""

    compression: Literal["none", "gzip"] = "none"
    """Compression of the bodies."""

    ca_file: str | None = None
    """PEM certificates of the authority that signed the receiver's certificate; default: those of the system, as
    OpenSSL finds them (`SSL_CERT_FILE`, `SSL_CERT_DIR`)."""

    redact: bool = False
    """Whether errors omit the receiver's answer, which may repeat rows."""

    storage_options: Pairs = Field(default_factory=dict, repr=False)
    """Options of the outbox's object store with `deltalake`'s names, as a JSON object. Never shown or stored."""

    @field_validator("url")
    @classmethod
    def _address(cls, value: str) -> str:
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
            raise ValueError("this is not an address such as https://host/path")
        if parts.username is not None or parts.password is not None:
            raise ValueError("credentials do not belong in an address; use 'token' or 'headers'")
        if not value.isprintable() or " " in value:
            raise ValueError("an address has no blanks and no control characters; encode them, as in %20")
        if parts.fragment:
            raise ValueError("an address of requests has no fragment ('#')")
        return value

    @model_validator(mode="after")
    def _one_of_each(self) -> HttpOptions:
        if self.token is not None and self.token_env is not None:
            raise ValueError("token and token_env exclude each other")
        if self.token is not None:
            check_value("token", self.token)
        self.all_headers(self.headers, self.token is not None or self.token_env is not None)
        return self

    def all_headers(self, given: Mapping[str, str], with_token: bool) -> dict[str, str]:
        """The user's headers.

        Raises:
            ValueError: one of them is malformed or is the sink's own; its value is not shown.
        """
        return checked(given, self.key_header, with_token=with_token)


class HttpTwoPhaseCommit(TwoPhaseCommitSink):
    """Epochs to an HTTP receiver, decided in an outbox and sent with idempotency keys."""

    options_type = HttpOptions
    options: HttpOptions
    quarantines = True

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        # Made absolute where the user's process is: an executor may have another working directory.
        self._place = placed(self.options.outbox, self.options.uid, self.options.storage_options)
        check_for_delta(self._place, f"sink '{self.options.uid}' (http_2pc), outbox")
        self._acknowledged: tuple[Epoch | None, int] = (None, 0)
        self._refused: dict[int, tuple[str, list[str]]] = {}
        """Of that epoch: the requests whose rows the receiver has refused, with its answer and the rows."""

    @classmethod
    def name(cls) -> str:
        """`http_2pc`."""
        return "http_2pc"

    @property
    def _who(self) -> str:
        return f"sink '{self.options.uid}' (http_2pc {shown(self.options.url)})"

    @cached_property
    def _outbox(self) -> Outbox:
        return Outbox(self._place, self.options.uid, self._who)

    def __getstate__(self) -> dict[str, Any]:
        """Sent to executors without the opened outbox."""
        return {key: value for key, value in self.__dict__.items() if key != "_outbox"}

    def validate(self, schema: StructType) -> None:
        """Check everything that can be checked before the query starts, except the receiver, which may start later.

        Raises:
            ConfigurationError: a type has no JSON form, the outbox is another table, or a variable is not set.
            EnvironmentProblem: `httpcore` is not installed.
            StorageError: the outbox cannot be read.
        """
        library(self._who)
        check_types(schema, self._who)
        exposed = credentials_in_clear(self.options.url, self._wire().headers)
        if exposed:
            log.warning(
                "%s sends credentials (%s) without encryption: the address is not https", self._who, ", ".join(exposed)
            )
        self._outbox.check()

    def write(self, schema: StructType, batches: Iterator[pa.RecordBatch], task: Task) -> tuple[DataFile, ...] | None:
        """Write rows as JSON to a file of the outbox that belongs to no epoch yet.

        Raises:
            DataError: a value has no JSON form.
            StorageError: the outbox cannot be written.
        """
        options = self.options
        cut = Cut(options.batch_rows, options.batch_bytes, options.body)
        who = f"{self._who}, epoch {task.epoch}, partition {task.partition}"
        bad = Aside(self, task).row if self.collects_bad_rows else None
        return stage(self._place, schema, batches, task, cut, who, bad)

    def claim(self, claim: Claim) -> None:
        """Set the fence of the outbox, then clean up the files that dead incarnations have left.

        Raises:
            FencedError: a newer incarnation has claimed it.
            ConfigurationError: it contains epochs of another job.
        """
        self._outbox.claim(claim)

    def check(self, epoch: Epoch) -> None:
        """Look at the outbox's fence."""
        self._outbox.look(epoch)

    def commit(self, schema: StructType, epoch: Epoch, prepared: Sequence[tuple[DataFile, ...]]) -> CommitOutcome:
        """Decide the epoch, send what was decided, and record that all of it was acknowledged.

        Raises:
            FencedError: a newer incarnation has claimed the outbox, or the receiver has seen one.
            DataError, ConfigurationError: the receiver has refused a request.
            TransientError: the receiver is unreachable or takes no requests now, and has taken none meanwhile.
        """
        files = [file for of_task in prepared for file in of_task]
        if not files:
            # All rows are bad, unless another attempt has decided otherwise.
            if self._outbox.decide_empty(epoch, self.keep_bad_rows) is CommitOutcome.COMMITTED:
                return CommitOutcome.COMMITTED
            if self._outbox.is_sent(epoch):
                return CommitOutcome.ALREADY_COMMITTED
        elif not self._outbox.decide(epoch, files):
            return CommitOutcome.ALREADY_COMMITTED
        self._send(epoch)
        reach(FailPoint.HTTP_ACKNOWLEDGED)
        self._put_aside(self._refused)
        recorded = self._outbox.settle(epoch, self.keep_bad_rows())
        reach(FailPoint.HTTP_SETTLED)
        return CommitOutcome.COMMITTED if recorded else CommitOutcome.ALREADY_COMMITTED

    def kept_bad_rows(self, epoch: Epoch) -> int | None:
        """The mark in the outbox."""
        return self._outbox.mark(epoch)

    def _put_aside(self, refused: Mapping[int, tuple[str, list[str]]]) -> None:
        """The rows of requests that were refused: of all, as another attempt at the commit begins without any."""
        for request, (answer, lines) in refused.items():
            for row, line in enumerate(lines):
                self.bad_row(BadRow({"request": request, "row": row}, answer, line))

    def _send(self, epoch: Epoch) -> None:
        """Only consecutive failures are failed attempts: a receiver that takes one request in ten makes progress."""
        import tenacity

        sender = Sender(self._wire(), f"{self._who}, query id {epoch.query_id}, epoch {epoch.number}")
        if self._acknowledged[0] != epoch:
            self._acknowledged, self._refused = (epoch, 0), {}
        limit = self.options.max_bad_rows
        while True:
            before = self._acknowledged[1]
            try:
                for chunk in self._outbox.decided(epoch):
                    if chunk.number >= self._acknowledged[1]:
                        refusal = sender.send(chunk, self._names(epoch, chunk), aside=self.collects_bad_rows)
                        if refusal is not None:
                            self._refused[chunk.number] = (refusal, chunk.lines())
                            if limit is not None and sum(len(lines) for _, lines in self._refused.values()) > limit:
                                self._put_aside(self._refused)  # says that these are too many
                        self._acknowledged = (epoch, chunk.number + 1)
                return
            except TransientError as failure:
                if not getattr(failure, "retry_now", True) or self._acknowledged[1] == before:
                    raise
                tenacity.nap.sleep(self.options.commit_backoff / 1000)

    def _names(self, epoch: Epoch, chunk: Chunk) -> dict[str, str]:
        """The headers that identify the rows: the key, and its parts for a receiver that compares them."""
        return {
            self.options.key_header: chunk.key(epoch),
            "Spark-Ext-Sink": epoch.sink,
            **({"Spark-Ext-Job": chunk.job} if chunk.job else {}),
            "Spark-Ext-Lineage": str(epoch.lineage),
            "Spark-Ext-Query": epoch.query_id,
            "Spark-Ext-Epoch": str(epoch.number),
            "Spark-Ext-Chunk": str(chunk.number),
            "Spark-Ext-Last-Chunk": "true" if chunk.last else "false",
            "Spark-Ext-Incarnation": str(epoch.incarnation),
            # From what was recorded, not from the option, which may have changed since: a row is an object.
            "Content-Type": "application/x-ndjson" if chunk.body[:1] != b"[" else "application/json",
        }

    def _wire(self) -> Wire:
        """The options in the client's form, with the values of environment variables.

        Raises:
            ConfigurationError: a variable is not set or invalid.
        """
        options = self.options
        given = dict(options.headers)
        if options.headers_env is not None:
            given |= self._json(options.headers_env)
        token = options.token if options.token_env is None else self._variable(options.token_env)
        # First of all, as nothing may be said about them before.
        masking.remember(*given.values(), token or "")
        try:
            given = options.all_headers(given, token is not None)
            if token is not None:
                check_value("token", token)
        except ValueError as problem:
            raise self._refusal(str(problem)) from None
        # The part after a scheme (`Bearer ...`) is a secret by itself.
        secrets = [part for value in given.values() for part in (value, value.partition(" ")[2])]
        secrets += [token] if token else []
        for parameter in urlsplit(options.url).query.split("&"):
            name, _, value = parameter.partition("=")
            secrets += [value, unquote_plus(value)] if is_secret_parameter(name) else []
        if token is not None:
            given["Authorization"] = f"Bearer {token}"
        if options.compression == "gzip":
            given["Content-Encoding"] = "gzip"
        return Wire(
            url=options.url,
            method=options.method,
            headers=given,
            secrets=tuple(sorted(filter(None, secrets), key=len, reverse=True)),
            timeout=options.timeout / 1000,
            patience=options.patience / 1000,
            conflict=options.conflict,
            compress=options.compression == "gzip",
            ca_file=options.ca_file,
            proxy=proxy_for(options.url, self._who),
            redact=options.redact,
        )

    def _variable(self, name: str) -> str:
        value = os.environ.get(name, "").strip()
        if not value:
            raise self._refusal(f"the environment variable '{name}' is not set in the driver")
        return value

    def _json(self, name: str) -> dict[str, str]:
        try:
            found = json.loads(self._variable(name))
        except json.JSONDecodeError:
            found = None
        if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
            raise self._refusal(f"the environment variable '{name}' is not a JSON object of strings")
        return found

    def _refusal(self, what: str) -> ConfigurationError:
        return refused(
            what,
            self._who,
            "correct the options 'token_env', 'headers' or 'headers_env', or the variables they name; the driver must "
            "be started with these variables",
        )
