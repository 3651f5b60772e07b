"""With which configuration a query's epochs were planned: a small file in its checkpoint directory.

The plan of a query that is a function of the configuration belongs to its epochs. One that was planned and not
committed is run again with the plan that it had, whatever the configuration is by then. Spark's offsets do not say
what that was, where a query has only sources of Spark's own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from spark_ext.control.stamps import FOLDER
from spark_ext.spark.logs.spark_log import SparkLog

if TYPE_CHECKING:
    from spark_ext.model.offsets import Json

NAME: Final = f"{FOLDER}/plans.json"
"""Relative to the checkpoint directory."""

KEPT: Final = 20
"""Plans in the file: those before belong to epochs that were committed long ago."""


def record(checkpoint: str, epoch: int, values: Mapping[str, Json], sequence: int) -> None:
    """A query is about to be started, and nothing of it is planned and not committed.

    Args:
        checkpoint: path or URI of its checkpoint directory.
        epoch: its next one.
        values: the user's configuration with which it was built.
        sequence: of the last control event in it.

    Raises:
        OSError: it cannot be written.
    """
    log = SparkLog(checkpoint)
    before = _read(log)
    kept = [plan for plan in before if plan["epoch"] < epoch][1 - KEPT :]
    plans = [*kept, {"epoch": epoch, "values": dict(values), "sequence": sequence}]
    if plans != before:
        log.replace(NAME, json.dumps({"version": 1, "plans": plans}))


def of_epoch(checkpoint: str, epoch: int) -> Mapping[str, Json] | None:
    """The configuration with which an epoch was planned; None if that is not known.

    Raises:
        OSError: it cannot be read.
    """
    found = [plan for plan in _read(SparkLog(checkpoint)) if plan["epoch"] <= epoch]
    return found[-1]["values"] if found else None


def _read(log: SparkLog) -> list[dict[str, Json]]:
    return list(log.parsed(NAME).get("plans", ()))
