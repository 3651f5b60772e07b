"""The inbox of a gateway while it is open: its description, who may send, and the store of its events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from spark_ext.errors import SparkExtError, StateError, refused
from spark_ext.gateway.senders import Credentials, Senders
from spark_ext.ingest.description import GATEWAYS, InboxDescription
from spark_ext.ingest.forms import explode
from spark_ext.ingest.log import LogState
from spark_ext.ingest.opening import seal
from spark_ext.ingest.place import FOLDER, InboxPlace
from spark_ext.ingest.records import Request
from spark_ext.ingest.store import Draining, GatewayStore
from spark_ext.masking import logger
from spark_ext.storage import child, local_path

log = logger("spark_ext.gateway")


@dataclass(frozen=True)
class Opened:
    """An inbox as its description has it now."""

    description: InboxDescription
    senders: Senders
    store: GatewayStore


class Inbox:
    """Opens an inbox, and opens it again when the job has changed its description. For the main thread but `now`."""

    def __init__(
        self, state: str, name: str, gateway: str, wal: str | None, storage_options: Mapping[str, str] | None
    ) -> None:
        self.name, self.gateway = name, gateway
        self.operator = f"inbox '{name}', gateway '{gateway}'"
        self._place = InboxPlace(child(state, FOLDER, name), self.operator, storage_options or {})
        self._folder = self._place.folder
        local = local_path(self._folder.uri)
        if wal is not None:
            self._wal = Path(wal)
        elif local is not None:
            self._wal = local / GATEWAYS / gateway / "wal"
        else:
            raise refused(
                "the inbox is in an object store, and no folder for the write-ahead log is given",
                self.operator,
                "give a folder with --wal, on a durable volume of this machine unless ack='store'",
            )
        self._credentials: Credentials | None = None
        self._senders = Senders()  # by the description with which it is open
        self._said = ""  # what keeps it from a newer description
        self._opened: Opened | None = None
        self._ended = False

    @property
    def now(self) -> Opened:
        """The open inbox, for any thread.

        Raises:
            Draining: it is not open.
        """
        found = self._opened
        if found is None or self._ended:
            raise Draining
        return found

    def reject(self, status: int) -> None:
        """Count a request that is refused, while the inbox is open; for the event loop."""
        found = self._opened
        if found is not None:
            found.store.reject(status)

    def described(self) -> InboxDescription:
        """Its description, which the job writes."""
        try:
            return self._place.description()
        except OSError as problem:
            raise StateError(
                f"its description cannot be read: {problem}",
                operator=self.operator,
                kept="the inbox is unchanged; nothing was started",
                do="check the path and the permissions",
            ) from None

    def open(self, credentials: Credentials | None = None) -> None:
        """Recover what a former process of this gateway has left, and open the inbox.

        Without `credentials` nobody may send to it.
        """
        self._credentials = credentials
        description = self.described()
        senders, problem = self._asked(description)
        if problem is not None:
            raise problem
        self._open(description, senders)

    def refresh(self) -> None:
        """Open the inbox again if its description has changed.

        While that cannot be used the inbox stays as it is, for those who may send by both.
        """
        found = self.now
        try:
            wanted = self._place.find()
        except OSError:
            return
        except SparkExtError as problem:
            self._say(problem)
            return
        if wanted is None:
            return
        if wanted == found.description:
            self._opened, self._said = replace(found, senders=self._senders), ""
            return
        senders, wrong = self._asked(wanted)
        if wrong is not None:
            self._opened = replace(found, senders=self._senders.stricter(senders))
            self._say(wrong)
            return
        self._opened, self._said = None, ""
        found.store.close()
        log.warning("%s: its description has changed; it is opened again", self.operator)
        self._open(wanted, senders)

    def _asked(self, description: InboxDescription) -> tuple[Senders, SparkExtError | None]:
        """Who may send by a description, and why it cannot be used."""
        senders, problem = Senders(), None
        if self._credentials is not None:
            senders, problem = self._credentials.senders(description, self.operator)
        try:
            description.check(self.operator)
        except SparkExtError as wrong:
            problem = wrong
        return senders, problem

    def _say(self, problem: SparkExtError) -> None:
        if self._said != str(problem):
            self._said = str(problem)
            log.error(
                "the inbox keeps its former description, and accepts only senders that both descriptions allow: %s",
                problem,
            )

    def _open(self, description: InboxDescription, senders: Senders) -> None:
        self._senders = senders
        explode([Request(0, b" ")], description.id, 0)  # loads what the first segment would wait for
        store = GatewayStore(description, self._folder, self._wal, self.gateway)
        store.open()
        self._opened = Opened(description, senders, store)

    def close(self) -> None:
        """Write what waits, and close the store; the next start of this gateway continues."""
        self._ended = True
        found, self._opened = self._opened, None
        if found is not None:
            found.store.close()

    def seal(self, *, accept_loss: bool) -> LogState:
        """End the log of a gateway that does not run any more, after what its write-ahead log still has.

        Raises:
            SparkExtError: the write-ahead log is not there or damaged, and `accept_loss` is false.
        """
        return seal(self.described(), self._folder, self._wal, self.gateway, accept_loss=accept_loss)
