"""Log levels of an epoch, in Python: for the loggers of Spark's workers, planners and committers."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from spark_ext import masking
from spark_ext.control import current
from spark_ext.errors import SparkExtError

NUMBERS: Final[Mapping[str, int]] = {
    "TRACE": 5,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "OFF": 1_000_000,
}

_applied: Mapping[str, str] = {}
_before: dict[str, int] = {}  # the levels that the changed loggers had


class EpochLogger(logging.Logger):
    """A logger whose level is that of the epoch in which a line is written."""

    def isEnabledFor(self, level: int) -> bool:
        """Whether a line of a level is written in the current epoch."""
        follow()
        return super().isEnabledFor(level)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return logger, (self.name,)


def logger(name: str) -> logging.Logger:
    """A logger whose level follows the `log_level` that is in force in the epoch of the code that writes a line.

    It may be made anywhere, also at the top of a module. Known secrets are masked. In workers, where Python drops lines
    below WARNING unless somebody has configured logging, lines go to standard error, which Spark keeps as the
    executor's log. In the driver it is an ordinary logger.
    """
    found = masking.logger(name)
    if not isinstance(found, EpochLogger):
        # Whoever has got this logger before holds the same object.
        found.__class__ = EpochLogger
    return found


def follow() -> None:
    """Apply the levels of the current epoch to the loggers of this process; nothing in the driver or outside of one."""
    # Logging is no reason to fail: what cannot be read fails the code that needs it.
    with contextlib.suppress(SparkExtError, OSError):
        found = current.in_worker()
        if found is not None:
            apply(found.levels)


def apply(wanted: Mapping[str, str]) -> None:
    """Give loggers the levels that were requested, and those that are not among them any more what they had before."""
    global _applied
    if NUMBERS[wanted.get("", "OFF")] < logging.INFO:
        wanted = {"py4j": "INFO", **wanted}  # below, it logs all values that Spark's settings have
    if wanted is _applied or wanted == _applied:
        return
    for name in _applied.keys() - wanted.keys():
        logging.getLogger(name).setLevel(_before.pop(name))
    for name, level in wanted.items():
        log = logging.getLogger(name)
        _before.setdefault(name, log.level)
        log.setLevel(NUMBERS[level])
    _applied = wanted
    root = logging.getLogger()
    if not root.handlers:
        handler = masking.masked(logging.StreamHandler())
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        root.addHandler(handler)
