"""A failure that came through Spark as one of our errors.

It is the error that a worker raised, what Spark itself says, or the most telling line of the stacks.

Only what carries the mark of this session's workers counts as an error of ours, and only what Java wrote as Spark's
word: the message of a user's exception decides nothing. Pure.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from spark_ext.errors import ConfigurationError, SparkExtError, StateError, StorageError, from_text
from spark_ext.queries.stack_traces import outside_python, telling_line

_IO: Final = (
    r"(?:java\.(?:io|nio\.file)\.\w+(?:Exception|Error)|org\.apache\.hadoop\.fs\.\w+(?:Exception|Error)"
    r"|org\.rocksdb\.RocksDBException)"
)
_SYSTEM: Final = re.compile(
    rf"(?:^|Caused by: |Suppressed: |\(TID \d+\) \([^)]*\): ){_IO}: .*"
    r"(?P<sign>No space left on device|Disk quota exceeded|Read-only file system)"
)
"""An error of the file system, as a class of Java's that stands where the exception's class stands."""

_READ_ONLY: Final = "Read-only file system"
_NUMBERS: Final = {
    errno.ENOSPC: "No space left on device",
    errno.EDQUOT: "Disk quota exceeded",
    errno.EROFS: _READ_ONLY,
}

_CONDITION: Final = re.compile(
    r"(?:^|: )\[(?P<condition>STATE_STORE_\w+|STREAMING_STATEFUL_OPERATOR_\w+)(?:\.\w+)?\] (?P<words>.*)"
)
_OTHER_STATE: Final = re.compile(
    r"STATE_STORE_(?:KEY|VALUE)_SCHEMA_\w+|STATE_STORE_(?:INVALID_|)(?:VARIABLE|COLUMN|CONFIG|TIME_MODE)\w*"
    r"|STATE_STORE_VALUE_SCHEMA_EVOLUTION\w*|STREAMING_STATEFUL_OPERATOR_\w+"
)
_SOURCE_COUNT: Final = re.compile(r"There are \[\d+\] sources in the checkpoint offsets and now there are \[\d+\]")


class SparkFailure(Exception):
    """A failure with the stack of Spark's JVM, which pyspark leaves out of the text of its exceptions."""

    @classmethod
    def of(cls, failure: BaseException) -> BaseException:
        """The failure with its stack in its text, if it has one; else the failure itself."""
        text, stack = str(failure), getattr(failure, "_stackTrace", None)
        if not isinstance(stack, str) or not stack or stack in text:
            return failure
        return cls(f"{text}\n\n{stack}")


@dataclass(frozen=True)
class _Where:
    operator: str
    kept: str


def describe(failure: BaseException, who: str, committed: int) -> SparkExtError:
    """The failure of an epoch as one of our errors; its `stack` is the failure's text.

    Args:
        failure: as Spark raised it.
        who: job and query, for the message.
        committed: the newest committed epoch; -1 when there is none.
    """
    if isinstance(failure, SparkExtError):
        return failure
    text = str(failure)
    kept = f"all epochs up to {committed} are committed" if committed >= 0 else "no epoch was committed before"
    where = _Where(f"{who}, epoch {committed + 1}", f"{kept}; this one left nothing visible")
    spoken = outside_python(text)
    found = (
        from_text(text, marked=True)
        or _of_the_file_system(failure, spoken, where)
        or _of_the_state(spoken, where)
        or SparkExtError(
            telling_line(text),
            operator=where.operator,
            kept=where.kept,
            do="see the stack in the job's incidents, fix the cause, and run the job again",
        )
    )
    found.stack = text
    return found


def _of_the_file_system(failure: BaseException, spoken: Iterable[str], where: _Where) -> SparkExtError | None:
    sign = _NUMBERS.get(failure.errno or 0) if isinstance(failure, OSError) else None
    for line in spoken:
        match = _SYSTEM.search(line)
        sign = sign or (match["sign"] if match else None)
    if sign is None:
        return None
    if sign == _READ_ONLY:
        return StateError(
            f"Spark could not write: {_READ_ONLY}",
            operator=where.operator,
            kept=where.kept,
            do="mount the disk of the state directory writable, and run the job again",
        )
    return StorageError(
        f"Spark could not write: {sign}",
        operator=where.operator,
        kept=where.kept,
        do="free space where the state directory is and where Spark keeps temporary files (spark.local.dir), and "
        "run the job again",
    )


def _of_the_state(spoken: Iterable[str], where: _Where) -> SparkExtError | None:
    query = re.search(r"query '([^']+)'", where.operator)
    again = (
        "restore the earlier definition; or discard the query's history with "
        f"job.reset({query[1] if query else 'uid'!r}): the next start reads all of its input again, and its earlier "
        "output stays where it is, so write to a new target or empty the present one first"
    )
    for line in spoken:
        if _SOURCE_COUNT.search(line):
            return StateError(
                "the query has another number of sources than its checkpoint",
                operator=where.operator,
                kept=where.kept,
                do=again,
            )
        match = _CONDITION.search(line)
        if match is None:
            continue
        if match["condition"] == "STATE_STORE_CHECKPOINT_IDS_NOT_SUPPORTED":
            return ConfigurationError(
                "the state store of spark.sql.streaming.stateStore.providerClass does not support "
                "spark.sql.streaming.stateStore.checkpointFormatVersion 2",
                operator=where.operator,
                kept=where.kept,
                do="leave the provider at RocksDBStateStoreProvider, as spark_ext.session() sets it; or set "
                "checkpointFormatVersion to 1, and start with a new state directory",
            )
        if _OTHER_STATE.fullmatch(match["condition"]):
            return StateError(
                "an aggregation, join or other stateful operator of the query differs from the one whose state is in "
                f"the checkpoint ({match['condition']})",
                operator=where.operator,
                kept=where.kept,
                do=again,
            )
    return None
