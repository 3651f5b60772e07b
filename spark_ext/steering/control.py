"""`Control`: one object for a state directory, a server, or a job of this process.

control = sx.Control("out/flights/state")
control.rate_limit("source:flights", 5000, wait=True)
control.pause()
control.events(limit=10)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from spark_ext.control.history import LIMIT, MOST, Filter
from spark_ext.control.requests import ControlRefused, Refusal, Request
from spark_ext.errors import SparkExtError
from spark_ext.model.configuration import Configuration
from spark_ext.model.control import Delivery, Event, Target
from spark_ext.options import milliseconds
from spark_ext.steering.buttons import Panel
from spark_ext.steering.commands import Commands
from spark_ext.steering.reach import Place, Reach, connect
from spark_ext.steering.sent import SentEvent
from spark_ext.steering.tables import ALL, events_html, standing_html

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from spark_ext.control.event_state import EventState
    from spark_ext.model.offsets import Json
    from spark_ext.steering.commands import How

SHOWN: Final = 10
"""Events in a notebook's display."""


class Events(list["EventState"]):
    """Control events, with a notebook display."""

    def _repr_html_(self) -> str:
        return events_html(self)


class Control(Commands):
    """Changes a job, and sees what has become of it.

    Each request is durable before a method returns, takes effect at one known epoch, and survives any crash. For a job
    that does not run, what stands is in force from its next start on.

    Args:
        where: the job's state directory, a path or URI; or the URL of a server, such as `https://host:8443`, with the
            path `/v1/jobs/NAME` if it serves several jobs.
        token: of the server; None: the environment variable `SPARK_EXT_TOKEN`.
    """

    def __init__(
        self,
        where: str | Path,
        token: str | None = None,
        *,
        storage_options: Mapping[str, str] | None = None,
        requested_by: str = "",
        verify: str | None = None,
    ) -> None:
        self._begin(
            connect(str(where), token, storage_options=storage_options, requested_by=requested_by, verify=verify)
        )

    def _begin(self, job: Reach) -> None:
        self._job = job
        self._client = job.client
        self._standing = Configuration()

    @classmethod
    def over(cls, job: Reach) -> Self:
        """A control of a job that is reached already."""
        made = cls.__new__(cls)
        made._begin(job)
        return made

    # -- sending ------------------------------------------------------------------------------------------------------

    def send(self, kind: str, target: str = "job", value: Json = None, **how: Unpack[How]) -> SentEvent:
        """Send an event of any kind, those of plugins included.

        Args:
            target: `job`, `query:UID`, `source:UID`, `source:UID/CHANNEL` or `sink:UID`.
        """
        request = Request(
            kind,
            target,
            value,
            how.get("delivery", "immediate"),
            how.get("idempotency_key"),
            self._expires(kind, target, how.get("expires")),
        )
        sent = SentEvent(self._client, self._client.send(request))
        wait = how.get("wait", False)
        if wait is not False:
            sent.wait(None if wait is True else wait)
        return sent

    def _expires(self, kind: str, target: str, given: datetime | str | int | None) -> datetime | None:
        if given is None or isinstance(given, datetime):
            return given
        try:
            return datetime.now(timezone.utc) + timedelta(milliseconds=milliseconds(given))
        except (ValueError, OverflowError) as problem:
            raise ControlRefused.because(
                Refusal.MALFORMED,
                f"expires: {problem}",
                f"{kind} for {target}",
                "give a duration such as '10 min', or a time with a zone",
            ) from None

    # -- looking ------------------------------------------------------------------------------------------------------

    def event(self, event_id: str) -> SentEvent:
        """An event by its id."""
        return SentEvent(self._client, self._client.event(event_id))

    def events(
        self,
        kind: str | Sequence[str] = (),
        *,
        status: str | Sequence[str] = (),
        target: str | Sequence[str] = (),
        requested_by: str | Sequence[str] = (),
        after: int | None = None,
        limit: int = LIMIT,
    ) -> Events:
        """Control events, newest first. Conditions are combined with AND, several values of one with OR.

        Args:
            requested_by: from these users or tokens.
        """
        wanted = Filter(_several(kind), _several(status), _several(target), _several(requested_by))
        found = Events()
        page = self._client.events(wanted, after=after, limit=min(limit, MOST))
        while True:
            found.extend(page.events)
            if page.cursor is None or not page.events or len(found) >= limit:
                return found
            page = self._client.events(wanted, cursor=page.cursor, limit=min(limit - len(found), MOST))

    def follow(self, after: int | None = None) -> Iterator[EventState]:
        """Each change of an event, as it comes, without end.

        Args:
            after: first all events after this sequence, as they are; None: only what changes from now on.
        """
        return self._client.follow(after)

    def config(self, query: str | None = None, epoch: int | None = None) -> dict[str, Any]:
        """What is in force.

        Args:
            query: uid of a query: its epoch's configuration; None: what is in force for the job behind the newest
                event.
            epoch: Spark's batch id; None: the newest epoch that was planned.

        Returns:
            `config`, the user's keys; `standing`, all that is in force, by kind, target and slot; `aligned`, events
            that wait for a barrier, by sequence; `sequence`, the last event that counts; `query`, `epoch` and whether
            it is `committed`.
        """
        if query is not None:
            return self._client.config(query, epoch).to_json()
        self._standing = self._standing.after(map(_event, self.events(after=self._standing.sequence, limit=ALL)))
        found = self._standing
        return {
            "query": "",
            "epoch": None,
            "committed": False,
            "sequence": found.sequence,
            "config": found.user(),
            "standing": found.to_json()["standing"],
            "aligned": dict(found.aligned),
        }

    def kinds(self) -> list[dict[str, Any]]:
        """The kinds of events that may be sent: `name`, `about`, `targets`, `example`, `value_schema` and others."""
        return self._job.kinds()

    def sources(self) -> tuple[str, ...]:
        """Uids of the job's channel sources, for targets."""
        return self._job.sources()

    def place(self, source: str, channel: str) -> Place | None:
        """Where a channel stands, before a `seek`; None if that is not known from here."""
        return self._job.place(source, channel)

    def buttons(self) -> Any:
        """Buttons for a notebook: pause, resume, drain, stop, and a rate limit for each source.

        Returns:
            A widget; without the extra `notebook` this object, whose display is a table.
        """
        return self if find_spec("ipywidgets") is None else Panel(self, self.sources, self._repr_html_).widget

    def close(self) -> None:
        """End connections. Repeated calls do nothing."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Control of {self._job.where}>"

    def _repr_html_(self) -> str:
        try:
            return f"{standing_html(self.config())}{events_html(self.events(limit=SHOWN))}"
        except SparkExtError as problem:
            from html import escape

            return f"<pre>{escape(str(problem))}</pre>"


def _several(given: str | Sequence[str]) -> Sequence[str]:
    return (given,) if isinstance(given, str) else given


def _event(state: EventState) -> Event:
    return Event(
        state.sequence,
        state.event_id,
        state.kind,
        Target.parse(state.target),
        state.value,
        Delivery(state.delivery),
    )
