"""`Control`: control events for a state directory, a server, or a job of this process.

control = sx.Control("out/flights/state")
control.rate_limit("source:flights", 5000, wait=True)
control.pause()
control.events(limit=10)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from html import escape
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from spark_ext.control.history import LIMIT, MOST, Filter
from spark_ext.control.requests import ControlRefused, Refusal, Request
from spark_ext.errors import SparkExtError
from spark_ext.model.configuration import Configuration
from spark_ext.model.control import Delivery, Event, Target
from spark_ext.options import milliseconds
from spark_ext.steering.reach import ChannelPosition, Reach, connect
from spark_ext.steering.sent import SentEvent
from spark_ext.steering.tables import ALL, events_html, standing_html

if TYPE_CHECKING:
    from typing_extensions import Self, TypedDict, Unpack

    from spark_ext.control.event_state import EventState
    from spark_ext.model.offsets import Json

    class How(TypedDict, total=False):
        """How an event is sent; see `Control`."""

        delivery: str
        idempotency_key: str | None
        expires: datetime | str | int | None
        wait: bool | float


SHOWN: Final = 10
"""Events in a notebook's display."""


class Events(list["EventState"]):
    """Control events, with a notebook display."""

    def _repr_html_(self) -> str:
        return events_html(self)


class Control:
    """Changes a job by control events, and follows them.

    Each request is durable before a method returns, takes effect at one known epoch, and survives any crash. Standing
    events for a job that does not run are in force from its next start on.

    All methods that send an event also accept these arguments:

    * `delivery`: `immediate`, or `aligned` for all queries at one cut of the job.
    * `idempotency_key`: repeating a request with the same key has no further effect.
    * `expires`: discard the event if it has not taken effect by then: a time with a zone, or a duration from now, such
      as `"10 min"` or a number of milliseconds.
    * `wait`: True, or a number of seconds: wait as `SentEvent.wait` does, and raise what it raises.

    They raise `ControlRefused` when the event is refused, and StateError or StorageError when the ledger or server
    cannot be reached.

    Args:
        where: the job's state directory, a path or URI; or the URL of a server, such as `https://host:8443`, with the
            path `/v1/jobs/NAME` if it serves several jobs.
        token: token for the server. Default: the environment variable `SPARK_EXT_TOKEN`.
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
        """Send an event of any kind, including those of plugins.

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

    def runs(self) -> bool | None:
        """Whether the job runs, so that it obeys now; None: unknown, as its driver is on another host."""
        return self._job.runs()

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

    # -- in force until another event replaces it ---------------------------------------------------------------------

    def rate_limit(
        self,
        target: str,
        rows_per_second: float | None = None,
        *,
        bytes_per_second: float | None = None,
        rows_per_epoch: int | None = None,
        older_than: str | int | None = None,
        **how: Unpack[How],
    ) -> SentEvent:
        """Limit how fast a source or a channel is read; without any limit, lift those that are in force.

        Args:
            target: `source:UID` or `source:UID/CHANNEL`.
            rows_per_epoch: of one epoch at most.
            older_than: a duration: the limits hold only for channels whose next rows are older.
        """
        value = {
            "rows_per_second": rows_per_second,
            "bytes_per_second": bytes_per_second,
            "rows_per_epoch": rows_per_epoch,
            "older_than": older_than,
        }
        given = {name: one for name, one in value.items() if one is not None}
        return self.send("rate_limit", target, given or None, **how)

    def pause(self, target: str = "job", **how: Unpack[How]) -> SentEvent:
        """Read nothing of the job, a query, a source or a channel; queries keep running."""
        return self.send("pause", target, **how)

    def resume(self, target: str = "job", **how: Unpack[How]) -> SentEvent:
        """End the pause of the same target. Limits stay in force."""
        return self.send("resume", target, **how)

    def sample(self, target: str, fraction: float | None, **how: Unpack[How]) -> SentEvent:
        """Read a share of the rows of a source or channel, chosen by channel and position; None: read all again."""
        return self.send("sample", target, None if fraction is None else {"fraction": fraction}, **how)

    def interval(self, interval: str | int | None, target: str = "job", **how: Unpack[How]) -> SentEvent:
        """Set the minimum time between the starts of two data epochs, ms or such as `"10 s"`; None: as before."""
        return self.send("trigger_interval", target, None if interval is None else {"interval": interval}, **how)

    def checkpoint_config(self, settings: Mapping[str, Json] | None, **how: Unpack[How]) -> SentEvent:
        """Change settings of checkpoints; None: as the job was started with."""
        return self.send("checkpoint_config", "job", None if settings is None else dict(settings), **how)

    def log_level(self, level: str, logger: str = "", **how: Unpack[How]) -> SentEvent:
        """Set the level of one logger, or of the root, in the driver, the executors and Python workers."""
        return self.send("log_level", "job", {"level": level, "logger": logger}, **how)

    def set(self, key: str, value: Json, query: str | None = None, **how: Unpack[How]) -> SentEvent:
        """Set a key of your own configuration, for the job or for one query."""
        return self.send("set_config", _target(query), {"key": key, "value": value}, **how)

    def unset(self, key: str, query: str | None = None, **how: Unpack[How]) -> SentEvent:
        """Remove a key of your own configuration, of the job or of one query."""
        return self.send("set_config", _target(query), {"key": key, "unset": True}, **how)

    def schema(self, key: str, schema: Mapping[str, Any] | bool, **how: Unpack[How]) -> SentEvent:
        """Declare the JSON Schema of a key: values that do not conform are refused from then on; True takes any."""
        value = schema if isinstance(schema, bool) else dict(schema)
        return self.send("config_schema", "job", {"key": key, "schema": value}, **how)

    def reload(self, lookup: str, version: int | None = None, **how: Unpack[How]) -> SentEvent:
        """Use another version of a lookup's table; None: the newest one. The result has the version.

        A job that does not run reloads when it is started. `applied` has the first epoch of each query with it.
        """
        value: dict[str, Json] = {"lookup": lookup}
        return self.send("reload", value=value if version is None else {**value, "version": version}, **how)

    # -- carried out once ---------------------------------------------------------------------------------------------

    def checkpoint(self, **how: Unpack[How]) -> SentEvent:
        """Take an aligned checkpoint; the result has its number."""
        return self.send("checkpoint", **how)

    def savepoint(self, path: str | Path, *, aligned: bool = False, **how: Unpack[How]) -> SentEvent:
        """Take a savepoint into a folder that is empty or missing, as the driver sees it."""
        value: dict[str, Json] = {"path": str(path)}
        return self.send("savepoint", "job", {**value, "aligned": True} if aligned else value, **how)

    def drain(self, **how: Unpack[How]) -> SentEvent:
        """End the job in order: sources stop, windows are emitted, the job finishes. It cannot be taken back."""
        return self.send("drain", **how)

    def stop(self, **how: Unpack[How]) -> SentEvent:
        """Stop the job where it is; a further start continues there."""
        return self.send("stop", **how)

    def restart(self, target: str = "job", **how: Unpack[How]) -> SentEvent:
        """Stop queries at an epoch boundary, and start them."""
        return self.send("restart", target, **how)

    def seek(self, source: str, channel: str, position: Json, *, yes: bool = False, **how: Unpack[How]) -> SentEvent:
        """Continue a channel at another position: the rows between are skipped, or read again."""
        return self.send("seek", f"source:{source}/{channel}", {"position": position, "yes": yes}, **how)

    def dump(self, *, scope: str = "all", heap: bool = False, **how: Unpack[How]) -> SentEvent:
        """Write stacks of the job's processes into the state directory; the result has the path.

        Args:
            scope: `all` processes, or the `driver` only.
            heap: whether to write the heap of the driver's JVM too, with the scope `all`. The JVM pauses until it is
                written, and secrets in the heap are not masked.
        """
        value: dict[str, Json] = {"scope": scope} if scope != "all" else {}
        return self.send("dump", value={**value, "heap": True} if heap else value, **how)

    def broadcast(self, type: str, value: Json = None, query: str | None = None, **how: Unpack[How]) -> SentEvent:
        """Send an event of your own to the functions of all queries, or of one."""
        return self.send("broadcast", _target(query), {"type": type, "value": value}, **how)

    # -- reading ------------------------------------------------------------------------------------------------------

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
        """Each change of an event as it happens; never ends.

        Args:
            after: begin with all events after this sequence. Default: only changes from now on.
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

    def lookups(self) -> list[dict[str, Any]]:
        """The lookups: `lookup`, `path`, `table` (the table's id), `version`, and its first epoch by query, `since`."""
        slots = self.config()["standing"].get("lookup_version", {}).get("job", {})
        events = self.events("lookup_version", limit=ALL)
        return [
            {
                **{name: value[name] for name in ("lookup", "path", "table", "version")},
                "since": next((dict(one.applied) for one in events if one.value == value), {}),
            }
            for _, value in sorted(slots.items())
        ]

    def kinds(self) -> list[dict[str, Any]]:
        """The kinds of events that may be sent: `name`, `about`, `targets`, `example`, `value_schema` and others."""
        return self._job.kinds()

    def sources(self) -> tuple[str, ...]:
        """Uids of the job's channel sources, for targets."""
        return self._job.sources()

    def place(self, source: str, channel: str) -> ChannelPosition | None:
        """The current position of a channel; None if it is unknown."""
        return self._job.place(source, channel)

    def buttons(self) -> Any:
        """Buttons for a notebook: pause, resume, drain, stop, and a rate limit for each source.

        Without the extra `notebook` it returns this object, whose display is a table.
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
            return f"<pre>{escape(str(problem))}</pre>"


class Panel:
    """Buttons for notebooks: pause, resume, drain, stop, and a rate limit for each source; drain and stop ask first."""

    def __init__(self, control: Control, sources: Callable[[], Sequence[str]], view: Callable[[], str]) -> None:
        self._control, self._sources, self._view = control, sources, view
        self._w: Any = import_module("ipywidgets")
        self.said = self._w.HTML()
        """The outcome of the last click."""
        self.view = self._w.HTML(view())
        """What is in force, and the last events."""
        self.pause = self._button("Pause", "pause", lambda: control.pause())
        self.resume = self._button("Resume", "play", lambda: control.resume())
        self.refresh = self._button("Refresh", "refresh", None)
        self.drain = self._confirmed("Drain", "the job ends for good", lambda: control.drain())
        self.stop = self._confirmed("Stop", "the next start continues", lambda: control.stop())
        self.limits = {uid: self._limit(uid) for uid in self._known()}
        """By source: the field, and the buttons that set and lift its limit."""
        first = self._w.HBox([self.pause, self.resume, *self.drain, *self.stop, self.refresh])
        rows = [self._w.HBox(list(parts)) for parts in self.limits.values()]
        self.widget: Any = self._w.VBox([first, *rows, self.said, self.view])

    def _known(self) -> Sequence[str]:
        try:
            return self._sources()
        except SparkExtError:
            return ()

    def _button(self, text: str, icon: str, act: Callable[[], SentEvent] | None, style: str = "") -> Any:
        made = self._w.Button(description=text, icon=icon, button_style=style)
        made.on_click(lambda _: self._do(act))
        return made

    def _confirmed(self, text: str, meaning: str, act: Callable[[], SentEvent]) -> tuple[Any, Any, Any]:
        """A button that only shows two others, Yes and No."""
        first = self._w.Button(description=text, tooltip=f"{meaning}; asks first")
        sure = self._w.Button(description=f"Yes, {text.lower()}", button_style="danger", tooltip=meaning)
        not_sure = self._w.Button(description="No")

        def show(asked: bool) -> None:
            first.layout.display = "none" if asked else None
            for one in (sure, not_sure):
                one.layout.display = None if asked else "none"

        def do(_: Any) -> None:
            show(False)
            self._do(act)

        first.on_click(lambda _: show(True))
        not_sure.on_click(lambda _: show(False))
        sure.on_click(do)
        show(False)
        return first, sure, not_sure

    def _limit(self, uid: str) -> tuple[Any, Any, Any]:
        field = self._w.BoundedFloatText(value=1000, min=1e-3, max=1e15, description=uid, tooltip="rows per second")
        target = f"source:{uid}"
        put = self._button("Limit rows/s", "tachometer", lambda: self._control.rate_limit(target, field.value))
        lift = self._button("No limit", "times", lambda: self._control.rate_limit(target))
        return field, put, lift

    def _do(self, act: Callable[[], SentEvent] | None) -> None:
        try:
            sent = None if act is None else act()
            self.said.value = (
                "" if sent is None else escape(f"event {sent.sequence}: {sent.kind} {sent.target} accepted")
            )
        except SparkExtError as problem:
            self.said.value = f"<pre>{escape(str(problem))}</pre>"
        self.view.value = self._view()


def _target(query: str | None) -> str:
    return "job" if query is None else f"query:{query}"


def _several(given: str | Sequence[str]) -> Sequence[str]:
    return (given,) if isinstance(given, str) else given


def _event(state: EventState) -> Event:
    return Event(
        state.sequence, state.event_id, state.kind, Target.parse(state.target), state.value, Delivery(state.delivery)
    )
