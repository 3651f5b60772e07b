"""Listeners of incidents and of states: what the author of one reads. Nothing else of this package is needed.

    from spark_ext.listeners.contract import IncidentListener

    class Pager(IncidentListener):
        def __init__(self, url):
            self.url = url

        def changed(self, change, context):
            page(self.url, f"{change.incident.severity.value}: {change.incident.what} is {change.new.value}")

    class Progress(JobStateListener):
        events = ("state", "latency")

        def happened(self, event, context):
            context.gauge("seconds_behind", event.details.get("latency_ms", 0) / 1000, label=event.query)

The file that a job's setting `incidents` names says which changes and which lifecycle events it is notified of:

    listeners:
      - use: "shop.paging:Pager"
        types: [failure, driver_lost]
        severity: ERROR
        events: [checkpoint]
        options: {url: "https://..."}

**What is guaranteed.** Each listener has a queue and a thread of its own: the methods of one object are never called by
two threads at once, and never by a thread of the job. The changes of one incident come in their order, and so do the
events of one query, or of the whole job. An event has the same `event_id` each time it is made of the same fact.
Secrets that the process knows are masked in all texts. No call and no error of a listener changes what the job does.

**What is not guaranteed.**

- *That a change or event comes.* A queue holds a limited number; what finds no room is dropped and counted. When the
  job ends, what could not be delivered within two seconds is dropped. A driver that is killed takes its queue with it:
  the next start notifies of what it finds itself (`driver_lost`), and not of what was lost. The ledger's tables
  `incidents` and `incident_changes` are the record, and for events the stream `GET /v1/jobs/{job}/events`. A restore or
  a rescale, for which no job runs, is reported at the next start.
- *That it comes at once*, or before the job acts on what has happened; or that the ledger has it by then.
- *That each step comes.* An incident that is opened again soon after it was resolved is not many notifications: see
  "Listeners" in docs/notifications.md. What is only counted is never one.
- *An order among different incidents*, or among listeners.
- *A further attempt.* A call that raises is counted, and its change is not given again. Repeat within the call what is
  worth repeating.
- *That a call which is late is ended.* Nothing can end it. After `timeout` it is counted; further changes wait until it
  has returned.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from spark_ext.errors import refused
from spark_ext.incidents.types import (
    EventKind,
    Incident,
    IncidentChange,
    IncidentState,
    LifecycleEvent,
    MetricsContext,
    Notice,
    Severity,
)
from spark_ext.options import Options

__all__ = [
    "EventKind",
    "Incident",
    "IncidentChange",
    "IncidentListener",
    "IncidentState",
    "JobStateListener",
    "LifecycleEvent",
    "MetricsContext",
    "Notice",
    "Severity",
]


class IncidentListener(ABC):
    """Is notified of incidents: one is new, was resolved, or is open again.

    The constructor gets the options of the configuration by name, and checks them: an object is made when the `Job` is
    created, so that bad options are refused there, and another one by each start. Connect to servers in `changed`.
    """

    digest_ms: ClassVar[int] = 0
    """For how long changes are collected into one call of `digest`, ms, unless the configuration says otherwise."""

    events: ClassVar[tuple[str, ...]] = ()
    """The kinds of lifecycle events that it is notified of, unless the configuration says otherwise."""

    @abstractmethod
    def changed(self, change: IncidentChange, context: MetricsContext) -> None:
        """Take one change.

        Args:
            change: what has happened to which incident. `change.old` is None for a new one.
            context: what is known of the job now, which may be later than the change.
        """

    def happened(self, event: LifecycleEvent, context: MetricsContext) -> None:  # noqa: B027
        """Take one event of the kinds in `events`."""

    def digest(self, notices: Sequence[Notice]) -> None:
        """Take several changes and events, if the listener collects them; in the order in which they came."""
        for one, context in notices:
            if isinstance(one, LifecycleEvent):
                self.happened(one, context)
            else:
                self.changed(one, context)

    def close(self) -> None:  # noqa: B027
        """No further change comes. Not called if an earlier call has not returned by then."""


class JobStateListener(IncidentListener):
    """Is notified of lifecycle events: of states of the job, its queries and sources, of checkpoints and others.

    A stall is an incident of the type `stall`: override `changed` for it.
    """

    events: ClassVar[tuple[str, ...]] = ("state", "source", "checkpoint", "job")

    def changed(self, change: IncidentChange, context: MetricsContext) -> None:
        """Nothing, unless it is overridden."""

    @abstractmethod
    def happened(self, event: LifecycleEvent, context: MetricsContext) -> None:
        """Take one event.

        Args:
            event: what has happened.
            context: what is known of the job now, which may be later than the event.
        """


O = TypeVar("O", bound="ListenerOptions")  # noqa: E741


class ListenerOptions(BaseModel):
    """Base of the options of a listener."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    @classmethod
    def of(cls: type[O], listener: str, given: Mapping[str, Any]) -> O:
        """The options from what is configured. Secrets among them are masked from now on.

        Args:
            listener: its name, for messages.
            given: by name.

        Raises:
            ConfigurationError: one is unknown, missing or invalid; no value of it is shown.
        """
        Options.keep_secret(given)
        try:
            return cls.model_validate(dict(given))
        except ValidationError as problem:
            first = problem.errors(include_url=False, include_input=False)[0]
            name = ".".join(str(part) for part in first["loc"])
            raise refused(
                f"listener '{listener}', option '{name}': {first['msg']}"
                if name
                else f"listener '{listener}': {first['msg']}",
                f"listener '{listener}'",
                f"correct it; the options are: {', '.join(sorted(cls.model_fields))}",
                kept="nothing was started",
            ) from None
