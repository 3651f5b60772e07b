"""A failure that came through Spark as one of our errors: the one in its text, or the most telling line of its stacks.

Pure.
"""

from __future__ import annotations

from spark_ext.errors import SparkExtError, StateError, StorageError, from_text

_FULL = ("No space left on device", "Disk quota exceeded")
_READ_ONLY = "Read-only file system"


def describe(failure: BaseException, who: str, committed: int) -> SparkExtError:
    """The failure of an epoch as one of our errors.

    Args:
        failure: as Spark raised it.
        who: job and query, for the message.
        committed: the newest committed epoch; -1 when there is none.
    """
    if isinstance(failure, SparkExtError):
        return failure
    text = str(failure)
    kept = f"all epochs up to {committed} are committed" if committed >= 0 else "no epoch was committed before"
    ours = from_text(text)
    if ours is not None:
        return ours
    operator, kept = f"{who}, epoch {committed + 1}", f"{kept}; this one left nothing visible"
    full = next((sign for sign in _FULL if sign in text), None)
    if full is not None:
        return StorageError(
            f"Spark could not write: {full}",
            operator=operator,
            kept=kept,
            do="free space where the state directory is and where Spark keeps temporary files (spark.local.dir), and "
            "run the job again",
        )
    if _READ_ONLY in text:
        return StateError(
            f"Spark could not write: {_READ_ONLY}",
            operator=operator,
            kept=kept,
            do="mount the disk of the state directory writable, and run the job again",
        )
    return SparkExtError(
        telling_line(text),
        operator=operator,
        kept=kept,
        do="see the stack in the job's incidents, fix the cause, and run the job again",
    )


def telling_line(text: str) -> str:
    """The most telling line of a Java and Python stack: the last Python error, else the first line."""
    # py4j puts ": " before the Java error's name.
    lines = [line.strip().removeprefix(": ") for line in text.splitlines() if line.strip()]
    for line in reversed(lines):
        name, separator, _ = line.partition(": ")
        if separator and name.replace(".", "").isidentifier() and name.endswith(("Error", "Exception")):
            return line
    return lines[0] if lines else "the query failed without a message"
