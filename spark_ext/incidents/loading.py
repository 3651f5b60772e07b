"""Makes the listeners that a configuration names: the shipped ones, those of packages, and the user's own."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Final

from spark_ext.errors import ConfigurationError, SparkExtError, refused
from spark_ext.incidents.dispatch import Notified, kinds_of
from spark_ext.incidents.registry import OPERATOR, ListenerEntry, Registry, at_line

GROUP: Final = "spark_ext.incident_listeners"  # entry points of this group can be named by their names

SHIPPED: Final = {  # listeners of this package, imported when they are used
    "log": "spark_ext.listeners.log:LogListener",
    "webhook": "spark_ext.listeners.webhook:WebhookListener",
    "smtp": "spark_ext.listeners.smtp:SmtpListener",
    "prometheus": "spark_ext.listeners.prometheus:PrometheusListener",
}


def listeners_of(registry: Registry) -> list[Notified]:
    """The listeners of a registry, in its order. They are made, and not called yet."""
    found = []
    for index, entry in enumerate(registry.listeners):
        try:
            found.append(_made(entry))
        except SparkExtError as problem:
            raise at_line(registry, index, problem) from None
        except Exception as problem:
            raise at_line(registry, index, _problem(entry, f"{type(problem).__name__}: {problem}")) from problem
    return found


def _made(entry: ListenerEntry) -> Notified:
    place = entry.use if ":" in entry.use else _place_of(entry.use)
    module, _, attribute = place.partition(":")
    kind: Any = import_module(module)
    for part in filter(None, attribute.split(".")):
        kind = getattr(kind, part)
    listener: Notified = kind(**entry.options)
    try:
        told = kinds_of(entry, listener)
    except ValueError as problem:
        raise _problem(entry, f"its attribute 'events': {problem}") from None
    for method in ("changed", "digest", "close", *(("happened",) if told else ())):
        if not callable(getattr(listener, method, None)):
            base = "JobStateListener" if method == "happened" else "IncidentListener"
            raise _problem(entry, f"it has no method '{method}': derive it from spark_ext.listeners.contract.{base}")
    return listener


def _place_of(name: str) -> str:
    if name in SHIPPED:
        return SHIPPED[name]
    points = {point.name: point.value for point in entry_points(group=GROUP)}
    if name not in points:
        raise refused(
            f"unknown listener '{name}'",
            OPERATOR,
            f"use one of: {', '.join(sorted({*SHIPPED, *points}))}; or name a class of yours, 'module:Class'",
        )
    return points[name]


def _problem(entry: ListenerEntry, what: str) -> ConfigurationError:
    return refused(
        f"the listener '{entry.use}' cannot be made: {what}", OPERATOR, f"correct the listener '{entry.use}'"
    )
