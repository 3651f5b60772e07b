"""The newest epoch that a query's sink has committed, in a small file beside Spark's checkpoint.

By it a commit and a claim notice that the target was dropped, created again or put back. It is written after the
commit, so it may be behind by an epoch, and is never ahead. When it cannot be written or read, only less is noticed.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Final

from spark_ext.errors import ConfigurationError
from spark_ext.spark.logs.spark_log import SparkLog
from spark_ext.storage import Folder, folder_at

NAME: Final = "target.json"


@dataclass(frozen=True)
class Position:
    """What the target is known to hold."""

    sink: str
    lineage: int
    query_id: str
    epoch: int

    def of(self, sink: str, lineage: int, query_id: str | None) -> int | None:
        """The epoch, if it is that of this sink, lineage and query."""
        return self.epoch if (self.sink, self.lineage, self.query_id) == (sink, lineage, query_id) else None


# By checkpoint and start of the job, what this process has written: the committing process reads no file for each
# epoch. Between two starts state and target may both have been put back, or the target exchanged on request.
_newest: dict[tuple[str, int], Position] = {}


def remembered(checkpoint: str, *, start: int | None = None) -> Position | None:
    """The position of a query's sink, or None; for a job's start what this process wrote last, without a read."""
    if start is not None and (checkpoint, start) in _newest:
        return _newest[checkpoint, start]
    with suppress(OSError, ValueError, TypeError):  # Arrow's own errors are ValueErrors
        return Position(**json.loads(_folder(checkpoint).read(NAME)))
    return None


def forget(checkpoint: str) -> None:
    """Nothing is known any more: the query continues in another target, on request."""
    with suppress(OSError, ValueError):
        _folder(checkpoint).write(NAME, "null")


def remember(checkpoint: str, position: Position, start: int) -> None:
    """Store the position after a commit; that of a repeated, older epoch says nothing new."""
    newest = _newest.get((checkpoint, start))
    known = newest.of(position.sink, position.lineage, position.query_id) if newest else None
    if known is not None and known >= position.epoch:
        return
    for key in [key for key in _newest if key[0] == checkpoint]:
        del _newest[key]
    _newest[checkpoint, start] = position
    with suppress(OSError, ValueError):
        _folder(checkpoint).write(NAME, json.dumps(asdict(position)))


def refuse_other_uid(checkpoint: str, uid: str, lineage: int, query_id: str | None) -> None:
    """Refuse another uid for a sink whose last epoch Spark is going to repeat: under that uid it would be a new one."""
    last = remembered(checkpoint)
    if last is None or last.sink == uid or last.of(last.sink, lineage, query_id) is None:
        return
    if SparkLog(checkpoint).is_committed(last.epoch):
        return
    raise ConfigurationError(
        f"the sink's uid was '{last.sink}' and is '{uid}' now, and epoch {last.epoch} was committed under the former "
        "one just before a crash: it is going to be repeated, and would be written twice",
        operator=f"sink '{uid}', checkpoint {checkpoint}",
        kept="nothing was started",
        do=f"start the job once with the uid '{last.sink}', stop it, and change the uid then",
    )


def _folder(checkpoint: str) -> Folder:
    """The one in which the checkpoint is. It is not made: Spark makes it with the query's first epoch."""
    return folder_at(checkpoint.rstrip("/").rpartition("/")[0], make=False)
