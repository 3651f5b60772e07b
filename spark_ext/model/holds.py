"""Where a query stands still for a restart: events at which its sources plan nothing until it has restarted. Pure.

A change that needs a restart takes effect between two epochs: those before it have the old plan and configuration,
those behind it the new ones. So the planners of a query obey the events before the one that needs a restart, *hold*
there, and say so. The driver then restarts the query, or releases them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from spark_ext.model.control import JOB, Delivery, Event, Target, query
from spark_ext.model.offsets import Json

ALL: Final = "*"
"""Among the keys of a query: its function reads all keys."""

SETTINGS: Final = "spark.sql."
"""Keys that begin with this are settings of the session in which a query runs."""


def is_read(keys: Collection[str], key: str) -> bool:
    """Whether the value of a key makes a difference for a query's plan.

    Args:
        keys: that the query's function has read, and `SETTINGS`; none for a query without a function.
    """
    return bool(keys) and (ALL in keys or key in keys or (SETTINGS in keys and key.startswith(SETTINGS)))


def changed_key(event: Event, aligned: Callable[[int], Json]) -> tuple[Target, str] | None:
    """Whose configuration an event puts into force, and which key of it; None if it changes none.

    Args:
        aligned: the aligned event with a sequence, as `kind`, `target` and `value`; None: no such event.
    """
    kind, target, value = event.kind, event.target, event.value
    if kind == "release":
        if value.get("void") or value.get("withdrawn"):
            return None
        held = aligned(int(value["sequence"]))
        if held is None:
            return None
        kind, target, value = held["kind"], Target.parse(held["target"]), held["value"]
    elif event.delivery is Delivery.ALIGNED:
        return None
    return (target, str(value["key"])) if kind == "set_config" else None


def holds_at(event: Event, uid: str, keys: Collection[str], aligned: Callable[[int], Json]) -> bool:
    """Whether a query may need a restart at an event."""
    if event.kind == "restart":
        return event.target in (JOB, query(uid))
    changed = changed_key(event, aligned) if keys else None
    return changed is not None and changed[0] in (JOB, query(uid)) and is_read(keys, changed[1])
