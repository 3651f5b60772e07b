"""Stamps beside the offsets that name them: small files in a folder of the query's checkpoint directory.

They move, are copied and are restored with the checkpoint. A stamp's name is a hash of its content, so all who write it
write the same.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from spark_ext.errors import StateError
from spark_ext.failpoints import FailPoint, reach
from spark_ext.model.configuration import Configuration, Stamp, name_of
from spark_ext.model.query_offsets import source_offsets
from spark_ext.spark.logs.epoch_files import STAMPS
from spark_ext.spark.logs.spark_log import SparkLog
from spark_ext.storage import LocalFolder, folder_at, local_path

if TYPE_CHECKING:
    from spark_ext.model.offsets import SourceOffset

FOLDER: Final = STAMPS  # the folder in the checkpoint directory


def file_of(name: str) -> str:
    """Where a stamp is, relative to the checkpoint directory."""
    return f"{FOLDER}/{name}.json"


def write(checkpoint: str, text: str) -> str:
    """Write a stamp, unless it is there; returns its name."""
    name = name_of(text)
    reach(FailPoint.CONTROL_BEFORE_STAMP)
    put(checkpoint, file_of(name), text)
    reach(FailPoint.CONTROL_STAMPED)
    return name


def decide(checkpoint: str, name: str, wanted: str) -> str:
    """Decide the question `name` once for all planners of a query: the first answer counts, and is returned."""
    place = f"{FOLDER}/{name}.txt"
    there = SparkLog(checkpoint).read(place)
    if there is None:
        put(checkpoint, place, wanted)
        there = SparkLog(checkpoint).read(place)
    return there or wanted


def put(checkpoint: str, place: str, text: str) -> None:
    """Write a file of the checkpoint directory, unless it is there; `place` is relative to it."""
    folder = folder_at(checkpoint)
    if isinstance(folder, LocalFolder):
        folder.create_once(place, text)
    elif not folder.has(place):
        # Conditional writes would need a library of their own. A stamp is named after its content: any copy will do.
        folder.write(place, text)


@lru_cache(maxsize=64)
def read(checkpoint: str, name: str) -> Stamp:
    """A stamp."""
    text = SparkLog(checkpoint).read(file_of(name))
    if text is None or name_of(text) != name:
        wrong = "is missing" if text is None else "was changed"
        raise StateError(
            f"the file {file_of(name)}, which says what configuration an epoch has, {wrong}",
            operator=f"checkpoint {checkpoint}",
            kept="the offsets and the output are unchanged; nothing was planned",
            do="restore the checkpoint directory from a backup, as a whole",
        )
    return Stamp.parse(text, f"checkpoint {checkpoint}")


def newest(offsets: Iterable[SourceOffset]) -> tuple[int, str]:
    """The highest control sequence among the sources of an epoch, and the stamp that goes with it; 0 and "" if none.

    Sources of one query look at different moments, and one that has ended looks no more: the highest counts.
    """
    return max(((offset.control, offset.stamp) for offset in offsets if offset.stamp), default=(0, ""))


def configuration(checkpoint: str, offsets: Iterable[SourceOffset], query: str = "") -> Configuration:
    """The configuration of an epoch."""
    _, name = newest(offsets)
    return read(checkpoint, name).seen_by(query) if name else Configuration()


def sweep(checkpoint: str, older_than: float) -> int:
    """Delete stamps and decisions older than some seconds that no offset of Spark's log names. Only in a local folder.

    The newest epochs name what they need for a replay. Older stamps serve those who ask for the configuration of an old
    epoch, so they stay for as long as the ledger keeps epochs: much longer than the time between two sweeps. Their age
    is counted from when they were last in force: those that are named are marked as used.
    """
    folder = local_path(checkpoint)
    if folder is None or not (folder / FOLDER).is_dir():
        return 0
    log = SparkLog(checkpoint)
    logged = [offsets for offsets in map(log.offsets, log.numbers("offsets")) if offsets is not None]
    named = {file_of(offset.stamp) for offsets in logged for offset in source_offsets(offsets).values()}
    for name in named:
        with suppress(FileNotFoundError):  # the name of no stamp, or one that is missed when it is read
            os.utime(folder / name)
    limit = time.time() - older_than
    old = [place for place in (folder / FOLDER).iterdir() if place.stat().st_mtime < limit]
    gone = [place for place in old if f"{FOLDER}/{place.name}" not in named]
    for place in gone:
        place.unlink(missing_ok=True)
    return len(gone)


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
