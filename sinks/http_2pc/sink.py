"""The sink `http_2pc`: each epoch is sent to an HTTP receiver in requests with idempotency keys.

    frame.writeStream.format("http_2pc").options(uid="orders", url="https://shop/orders", outbox="state/outbox").start()

Tasks write their rows as JSON into an outbox; the driver records the epoch there (`outbox`), and only then sends it
(`client`). Exactly once requires a receiver that remembers keys: `docs/http_2pc.md` says for how long.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_plus, urlsplit

import pyarrow as pa
from pyspark.sql.types import StructType

from spark_ext import masking
from spark_ext.bad_rows.row import BadRow
from spark_ext.errors import ConfigurationError, TransientError, refused
from spark_ext.failpoints import FailPoint, reach
from spark_ext.masking import logger
from spark_ext.model.token_bucket import TokenBucket
from spark_ext.options import is_secret_parameter
from spark_ext.sinks.contract import Claim, CommitOutcome, Epoch, Task, TwoPhaseCommitSink
from spark_ext.sinks.http_2pc.addresses import Addresses
from spark_ext.sinks.http_2pc.client import Sender, Wire, library, shown
from spark_ext.sinks.http_2pc.credentials import Grant, check_value, credentials_in_clear
from spark_ext.sinks.http_2pc.options import HttpOptions
from spark_ext.sinks.http_2pc.outbox import Outbox, placed
from spark_ext.sinks.http_2pc.outbox_pieces import Chunk, ChunkRule, stage
from spark_ext.sinks.http_2pc.tls import proxy_for
from spark_ext.sinks.json_rows import check_types
from spark_ext.sinks.runtime.aside import Aside
from spark_ext.storage import check_for_delta

if TYPE_CHECKING:
    from spark_ext.datafiles.writer import DataFile


log = logger("spark_ext.http")

_paces: dict[tuple[str, float], TokenBucket] = {}  # By outbox and rate: sink objects are created again for each epoch


def _pace(outbox: str, rate: float) -> TokenBucket:
    """Requests at equal distances: time without requests is not made up for."""
    return _paces.setdefault((outbox, rate), TokenBucket(rate, time.monotonic(), burst=1, least=0, held=1))


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
        self._refused: dict[int, tuple[str, list[str]]] = {}  # By request: the receiver's answer, and the rows

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
        return {key: value for key, value in self.__dict__.items() if key not in ("_outbox", "_addresses")}

    @cached_property
    def _addresses(self) -> Addresses:
        return Addresses(self.options.url, self.options.url_column, self.options.allowed(), self._who)

    def validate(self, schema: StructType) -> None:
        """Check everything that can be checked before the query starts, except the receiver, which may start later.

        A token endpoint that does not answer may start later, too. One that refuses is the wrong one.
        """
        library(self._who)
        self._addresses.check(schema)
        check_types(self._addresses.body(schema), self._who)
        wire = self._wire()
        wire.tls.context(self._who)
        proxy_for(wire.url, self._who)
        self._warn(wire)
        self._outbox.check()
        try:
            Sender(wire, self._who).authorize()
        except TransientError as later:
            log.warning("%s", later)

    def _warn(self, wire: Wire) -> None:
        """Report credentials that anybody on the way can read."""
        sent = [*wire.headers, *(["Authorization"] if wire.grant is not None else [])]
        exposed = credentials_in_clear(self.options.url, dict.fromkeys(sent, ""))
        if exposed:
            log.warning(
                "%s sends credentials (%s) without encryption: the address is not https", self._who, ", ".join(exposed)
            )
        if wire.grant is not None and credentials_in_clear(wire.grant.url, {"Authorization": ""}):
            log.warning("%s sends the client's secret without encryption: 'oauth2_token_url' is not https", self._who)

    def write(self, schema: StructType, batches: Iterator[pa.RecordBatch], task: Task) -> tuple[DataFile, ...] | None:
        """Write rows as JSON to a file of the outbox that belongs to no epoch yet."""
        options = self.options
        cut = ChunkRule(1 if options.body == "object" else options.batch_rows, options.batch_bytes, options.body)
        who = f"{self._who}, epoch {task.epoch}, partition {task.partition}"
        addresses = Addresses(options.url, options.url_column, options.allowed(), who)
        bad = Aside(self, task).row if self.collects_bad_rows else None
        return stage(self._place, schema, batches, task, cut, who, addresses if addresses.vary else None, bad)

    def check_claim(self, claim: Claim) -> None:
        """By the numbers in the outbox."""
        self._outbox.check_claim(claim)

    def claim(self, claim: Claim) -> None:
        """Set the fence of the outbox, then clean up the files that dead incarnations have left."""
        self._outbox.claim(claim)

    def check(self, epoch: Epoch) -> None:
        """Look at the outbox's fence."""
        self._outbox.check_epoch(epoch)

    def commit(self, schema: StructType, epoch: Epoch, prepared: Sequence[tuple[DataFile, ...]]) -> CommitOutcome:
        """Decide the epoch, send what was decided, and record that all of it was acknowledged."""
        files = [file for of_task in prepared for file in of_task]
        if not files:
            # All rows are bad, unless another attempt has decided otherwise.
            if self._outbox.decide_empty(epoch, self.keep_bad_rows) is CommitOutcome.COMMITTED:
                return CommitOutcome.COMMITTED
            if not self._outbox.adopt(epoch, self.adopt_bad_rows):
                return CommitOutcome.ALREADY_COMMITTED
        elif not self._outbox.decide(epoch, files, self.keep_bad_rows, self.adopt_bad_rows):
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
            # From what was recorded, not from the option, which may have changed since.
            "Content-Type": chunk.content,
        }

    def _wire(self) -> Wire:
        """The options in the client's form, with the values of environment variables."""
        options = self.options
        given = dict(options.headers)
        if options.headers_env is not None:
            given |= self._json(options.headers_env)
        token = self._secret(options.token, options.token_env)
        secret = self._secret(options.oauth2_client_secret, options.oauth2_client_secret_env)
        password = self._secret(options.tls_client_key_password, options.tls_client_key_password_env)
        # First of all, as nothing may be said about them before.
        masking.remember(*given.values(), token or "", secret or "", password or "")
        try:
            given = options.all_headers(given, options.sends_token)
            if token is not None:
                check_value("token", token)
        except ValueError as problem:
            raise self._refusal(str(problem)) from None
        # The part after a scheme (`Bearer ...`) is a secret by itself.
        secrets = [part for value in given.values() for part in (value, value.partition(" ")[2])]
        secrets += [one for one in (token, secret, password) if one]
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
            timeout=options.request_timeout / 1000,
            patience=options.patience / 1000,
            conflict=options.conflict,
            compress=options.compression == "gzip",
            tls=options.tls(password),
            redact=options.redact,
            allowed=options.allowed(),
            grant=self._grant(secret),
            pace=None if (rate := options.max_requests_per_second) is None else _pace(self._place.uri, rate),
        )

    def _grant(self, secret: str | None) -> Grant | None:
        options = self.options
        if options.oauth2_token_url is None or options.oauth2_client_id is None or secret is None:
            return None
        return Grant(
            options.oauth2_token_url,
            options.oauth2_client_id,
            secret,
            options.oauth2_scope,
            options.oauth2_audience,
            options.oauth2_auth,
        )

    def _secret(self, given: str | None, variable: str | None) -> str | None:
        return given if variable is None else self._variable(variable)

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
            "correct the options 'token_env', 'headers', 'headers_env' or other names of variables, or the variables; "
            "the driver must be started with them",
        )
