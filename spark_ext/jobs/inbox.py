"""An inbox as a user holds it: senders push events to its gateways, and queries of the job read them."""

from __future__ import annotations

import atexit
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.types import StructType

from spark_ext import masking
from spark_ext.errors import StateError, refused
from spark_ext.ingest.description import InboxDescription
from spark_ext.ingest.place import InboxPlace, inbox_path
from spark_ext.sources.http_ingest import RAW_COLUMNS, inbox_schema
from spark_ext.spark.backend.kinds import backend_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from typing_extensions import Self

PATIENCE: Final = 30.0  # how long a gateway may take to stop, s


class Inbox:
    """What senders push to a job. `Job.inbox` makes it.

    The job registers it when it starts: from then on gateways (`spark-ext ingest serve`, `Job.serve_inbox`) accept
    events for it, also while the job does not run. What all sources of the job that read it have committed, durably, is
    released. Events stay as long as a savepoint or a retained checkpoint of the job needs them.

    Delivery: each acknowledged event with an identity is read once; one without an identity at least once. Order: as
    received, per gateway.
    """

    def __init__(self, spark: SparkSession, job: str, state: str, wanted: InboxDescription) -> None:
        self.name = wanted.name
        """Unique in the job."""
        self.path = inbox_path(state, wanted.name)
        """Its folder in the job's state directory."""
        self._spark, self._wanted = spark, wanted
        self._who = f"job '{job}', inbox '{wanted.name}'"
        self._readers: dict[str, None] = {}

    @property
    def readers(self) -> tuple[str, ...]:
        """Uids under which it is read, in the order of the calls of `read`."""
        return tuple(self._readers)

    def description(self, job_id: str) -> InboxDescription:
        """As it is registered by a job."""
        return replace(self._wanted, job_id=job_id)

    def read(self, uid: str, **options: Any) -> DataFrame:
        """The events, from the first one on: the declared columns, or without a schema one row per event as it came.

        An event that has been read under this inbox before is left out. One that does not fit the columns, or has the
        identity of an earlier one and another body, is a bad row.

        Args:
            uid: of the source.
            options: of the source `http_ingest`, such as `metadata=True`, `max_rows_per_epoch` or `on_bad_row`.
        """
        self._readers[uid] = None
        given: dict[str, Any] = {"on_bad_row": "quarantine", **options}
        shown = bool(given.get("metadata")) and str(given["metadata"]).lower() != "false"
        columns = None if self._wanted.columns is None else StructType.fromJson(dict(self._wanted.columns))
        reader = self._spark.readStream.format("http_ingest")
        if given.get("body_format") is None:  # else a registry knows the columns, and the source asks it
            reader = reader.schema(inbox_schema(columns, metadata=shown, operator=self._who))
        settings = {name: str(value) for name, value in given.items()}
        settings["columns"] = RAW_COLUMNS if columns is None else columns.json()
        reader = reader.options(uid=uid, path=self.path, **settings)
        return backend_of(self._spark).name_source(reader, self._spark, uid).load()

    def serve(self, gateway: str, options: Sequence[str]) -> InboxServing:
        """See `Job.serve_inbox`."""
        if InboxPlace(self.path, self._who).find() is None:
            raise refused(
                "the inbox is not registered yet: gateways learn from its folder what they accept",
                self._who,
                "start the job first; it registers its inboxes, and what comes later is read as it comes",
            )
        state = self.path.rpartition("/")[0].rpartition("/")[0]
        return InboxServing(f"{self._who}, gateway '{gateway}'", [state, self.name, "--gateway", gateway, *options])

    def __repr__(self) -> str:
        return f"<Inbox {self.name}: read by {', '.join(self._readers) or 'nobody'}>"


class InboxServing:
    """A gateway as a process of its own, which accepts events from now on; also a context manager.

    It ends with this Python process, with `stop`, and with a drain of the job. The end of a run does not end it.
    """

    def __init__(self, operator: str, arguments: Sequence[str]) -> None:
        command = [sys.executable, "-m", "spark_ext", "ingest", "serve", *arguments, "--json", "--attached"]
        self._operator = operator
        # What it says on standard error goes where this process's own goes.
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        atexit.register(self.stop)
        assert self._process.stdout is not None
        try:
            found = json.loads(self._process.stdout.readline())
        except ValueError:
            self.stop()
            raise StateError(
                f"the gateway has ended at once, with exit code {self._process.returncode}",
                operator=operator,
                kept="the inbox is unchanged, and the job continues",
                do="read its message, which is on standard error",
            ) from None
        self.url: str = found["url"]
        """Where events are sent, such as `http://127.0.0.1:40123/v1/inboxes/orders`."""
        self.token: str | None = found["token"]
        """Its token; None if senders sign what they send, or with a token file."""
        masking.remember(*([self.token] if self.token else []))

    @property
    def pid(self) -> int:
        """Of its process."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it accepts events."""
        return self._process.poll() is None

    def stop(self) -> None:
        """Let it write what it has accepted, and end. Repeated calls do nothing."""
        atexit.unregister(self.stop)
        if self.running:
            self._process.terminate()
            try:
                self._process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self._process.kill()  # what it has acknowledged is in its write-ahead log
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<InboxServing of {self._operator} at {self.url}{'' if self.running else ', stopped'}>"
