"""Control events: requests to a running job, and what functions of the user's see of them (`sx.control`).

    sx.control.config()["threshold"]            # in a UDF, mapInArrow, foreachBatch, source or sink
    sx.control.value("threshold", "double")     # as a column
    sx.control.events("flush-cache")            # the user's events that take effect with this epoch
    sx.control.emit("late-rows", {"count": 7})  # an event that counts once its epoch is committed
    sx.control.logger("my.module").debug("...") # a logger whose level follows `log_level`

Names are loaded on first use, as those of `spark_ext`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spark_ext.control.emitted import emit as emit
    from spark_ext.control.functions import config as config
    from spark_ext.control.functions import events as events
    from spark_ext.control.functions import value as value
    from spark_ext.control.levels import logger as logger

# No function has the name of a module of this package: importing that module would hide the function.
_PLACES = {"config": "functions", "emit": "emitted", "events": "functions", "logger": "levels", "value": "functions"}

__all__ = ["config", "emit", "events", "logger", "value"]


def __getattr__(name: str) -> Any:
    place = _PLACES.get(name)
    if place is None:
        raise AttributeError(f"module 'spark_ext.control' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"spark_ext.control.{place}"), name)
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
