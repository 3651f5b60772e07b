"""The errors of spark-ext: what happened, to whom, what was kept, what to do now.

Two branches decide what a supervisor does. A `TerminalError` comes back however often the epoch is repeated, so the
query stops at once; a `TransientError` may pass, so the query is restarted with back-off. Both survive the trip from
a Python worker through the JVM: Spark hands back the worker's traceback as text, and `from_text` rebuilds the error
from it. (The split into terminal and transient follows dlt.)
"""

from __future__ import annotations

import re
from typing import ClassVar


class SparkExtError(Exception):
    """Base of every error that spark-ext raises on purpose.

    Args:
        what: what happened, one sentence.
        operator: to whom: a job, source, query or sink uid, with channel and epoch where they are known.
        kept: what is safe: the state that was not touched.
        do: the next thing to do.
    """

    code: ClassVar[str] = "SPARK_EXT"
    """Stable name of the kind of error, used in tables and for `from_text`."""

    def __init__(self, what: str, *, operator: str = "", kept: str = "", do: str = "") -> None:
        super().__init__(what)
        self.what, self.operator, self.kept, self.do = (" ".join(text.split()) for text in (what, operator, kept, do))

    def __str__(self) -> str:
        lines = [f"[{self.code}] {self.what}"]
        lines += [f"  {label} {text}" for label, text in self._details() if text]
        return "\n".join(lines)

    def _details(self) -> tuple[tuple[str, str], ...]:
        return (("at:  ", self.operator), ("kept:", self.kept), ("do:  ", self.do))

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.what, self.operator, self.kept, self.do), dict(self.__dict__))


def _rebuild(kind: type[SparkExtError], what: str, operator: str, kept: str, do: str) -> SparkExtError:
    # Past the constructor of `kind`: a subclass from elsewhere may ask for arguments of its own.
    error = kind.__new__(kind, what)
    SparkExtError.__init__(error, what, operator=operator, kept=kept, do=do)
    return error


class TerminalError(SparkExtError):
    """Repeating the epoch gives the same error: the query stops, nothing is retried."""

    code = "TERMINAL"


class TransientError(SparkExtError):
    """The outside world may recover: the query is restarted with back-off, up to the job's limit."""

    code = "TRANSIENT"


class ConfigurationError(TerminalError):
    """An option, uid, schema, path or plan was refused before any data moved."""

    code = "CONFIGURATION"


class EnvironmentProblem(ConfigurationError):
    """Java, the Delta jar or the worker's Python is missing or not the right one."""

    code = "ENVIRONMENT"


class DataError(TerminalError):
    """Input that cannot be read as declared: a truncated file, a column of another type."""

    code = "DATA"


class StateError(TerminalError):
    """The job's state directory is not usable as it is: another job's, read-only, or partly deleted."""

    code = "STATE"


class OffsetError(StateError):
    """A stored offset does not belong to the source it was given to."""

    code = "OFFSET"


class FencedError(TerminalError):
    """A newer incarnation of the job owns the state and the targets; this one may not commit any more."""

    code = "FENCED"


class UnsupportedTableError(ConfigurationError):
    """The target needs a feature that the sink does not write."""

    code = "UNSUPPORTED_TABLE"


class StorageError(TransientError):
    """A read or write of the state directory or a target failed: a full disk, a lost mount, a network fault."""

    code = "STORAGE"


class PreparedLostError(SparkExtError):
    """What an epoch's tasks had prepared is gone. The commit is not tried again; the epoch is, from its source."""

    code = "PREPARED_LOST"


class ReplayError(TerminalError):
    """A replayed epoch would not give the rows it gave, because its input has been changed since."""

    code = "REPLAY"


class CommitError(TransientError):
    """A sink could not commit an epoch within its retries; whether it took effect is decided at the next attempt."""

    code = "COMMIT"


class JobFailedError(SparkExtError):
    """A job ended in FAILED; `cause_text` holds what Spark or a worker said, with its stack."""

    code = "JOB_FAILED"
    cause_text: str = ""

    def __init__(self, what: str, *, operator: str = "", kept: str = "", do: str = "", cause_text: str = "") -> None:
        super().__init__(what, operator=operator, kept=kept, do=do)
        self.cause_text = cause_text


_RENDERED = re.compile(
    r"[\w.]+: \[(?P<code>[A-Z_]+)\] (?P<what>[^\n]*)"
    r"(?:\n\s*at: +(?P<operator>[^\n]*))?(?:\n\s*kept: +(?P<kept>[^\n]*))?(?:\n\s*do: +(?P<do>[^\n]*))?"
)


def from_text(text: str) -> SparkExtError | None:
    """The last of our errors that a stack trace carries, as an object; None when there is none."""
    # A subclass without a code of its own goes by its parent's, and comes back as its parent.
    kinds = {kind.code: kind for kind in reversed(_all_kinds(SparkExtError))}
    for match in reversed(list(_RENDERED.finditer(text))):
        kind = kinds.get(match["code"])
        if kind is not None:
            details = (match[name] or "" for name in ("operator", "kept", "do"))
            return _rebuild(kind, match["what"], *details)
    return None


def _all_kinds(kind: type[SparkExtError]) -> list[type[SparkExtError]]:
    return [kind, *(grandchild for child in kind.__subclasses__() for grandchild in _all_kinds(child))]
