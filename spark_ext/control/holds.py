"""What planners and driver say to each other while a query stands still: small files beside the stamps of its epochs.

They belong to one start of the job. A start that finds those of another one ignores and removes them.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress

from spark_ext.control.stamps import FOLDER, put
from spark_ext.spark.logs.spark_log import SparkLog

_PREFIXES = ("held-", "released-")


def _held(start: int, sequence: int, source: str) -> str:
    return f"held-{start:016x}-{sequence}-{source}.txt"


def _released(start: int, sequence: int) -> str:
    return f"released-{start:016x}-{sequence}.txt"


def hold(checkpoint: str, start: int, sequence: int, source: str) -> None:
    """A source has obeyed all events before one, and plans nothing more."""
    put(checkpoint, f"{FOLDER}/{_held(start, sequence, source)}", "")


def all_hold(checkpoint: str, start: int, sequence: int, sources: Collection[str]) -> bool:
    """Whether all of these sources hold at an event."""
    log = SparkLog(checkpoint)
    return all(log.has(f"{FOLDER}/{_held(start, sequence, source)}") for source in sources)


def release(checkpoint: str, start: int, sequence: int) -> None:
    """The query is not restarted at an event: its sources obey the event, and continue."""
    put(checkpoint, f"{FOLDER}/{_released(start, sequence)}", "")


def is_released(checkpoint: str, start: int, sequence: int) -> bool:
    """Whether the sources of a query continue at an event."""
    return SparkLog(checkpoint).has(f"{FOLDER}/{_released(start, sequence)}")


def forget(checkpoint: str, start: int) -> None:
    """Remove the files of other starts; what cannot be removed is left there."""
    log = SparkLog(checkpoint)
    with suppress(OSError):
        for name in log.names(FOLDER):
            if name.startswith(_PREFIXES) and f"-{start:016x}-" not in name:
                with suppress(OSError):
                    log.delete(f"{FOLDER}/{name}")
