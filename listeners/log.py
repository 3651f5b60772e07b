"""Incident listener `log`: a line of Python's logging for each change and each event."""

from __future__ import annotations

import logging
from typing import Final

from pydantic import Field

from spark_ext.listeners.contract import (
    IncidentChange,
    IncidentListener,
    IncidentState,
    LifecycleEvent,
    ListenerOptions,
    MetricsContext,
    Severity,
)
from spark_ext.masking import logger

_LEVELS: Final = {
    Severity.INFO: logging.INFO,
    Severity.WARNING: logging.WARNING,
    Severity.ERROR: logging.ERROR,
    Severity.CRITICAL: logging.CRITICAL,
}


class LogOptions(ListenerOptions):
    """Options of the listener `log`."""

    logger: str = Field(default="spark_ext.incidents.changes", min_length=1)  # name of the logger


class LogListener(IncidentListener):
    """Logs each change: one that opens an incident at its severity's level, others, and events, as information."""

    def __init__(self, **options: object) -> None:
        self._log = logger(LogOptions.of("log", options).logger)

    def changed(self, change: IncidentChange, context: MetricsContext) -> None:
        """Log a change."""
        level = _LEVELS[change.incident.severity] if change.new is IncidentState.OPEN else logging.INFO
        self._log.log(level, "%s", line(change, context))

    def happened(self, event: LifecycleEvent, context: MetricsContext) -> None:
        """Log an event."""
        self._log.info("%s", event_line(event, context))


def event_line(event: LifecycleEvent, context: MetricsContext) -> str:
    """An event on one line: kind, where, the step, why, and its details."""
    names = {"job": context.job, "query": event.query, "source": event.source}
    where = ", ".join(f"{name} '{value}'" for name, value in names.items() if value)
    step = event.new if event.old is None else f"{event.old} -> {event.new}"
    text = f"[{event.kind.value}] {where}: {step}"
    if event.cause:
        text += f": {' '.join(event.cause.partition(chr(10))[0].split())}"
    details = ", ".join(f"{name} {value}" for name, value in event.details.items())
    return f"{text}; {details}" if details else text


def line(change: IncidentChange, context: MetricsContext) -> str:
    """A change on one line: severity, type, state, what, and the figures that are known."""
    one = change.incident
    state = "opened again" if change.new is IncidentState.OPEN and change.old is not None else change.new.value.lower()
    text = f"[{one.severity.value}] {one.type} {one.incident_id[:8]} {state}: {one.operator}: "
    text += " ".join(one.what.partition("\n")[0].split())
    if change.cause and change.old is not None:
        text += f" ({change.cause})"
    if change.count > 1:
        text += f"; {change.count} times"
    figures = {"epoch": context.epoch, "rows": context.rows, "lag": context.lag}
    known = ", ".join(f"{name} {value}" for name, value in figures.items() if value is not None)
    return f"{text}; {known}" if known else text
