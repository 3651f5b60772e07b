"""The errors of spark-ext: what happened, to whom, what was kept, what to do now.

Two branches decide what a supervisor does. A `TerminalError` occurs again however often the epoch is retried, so the
query stops at once; a `TransientError` may go away, so the query is restarted with back-off. Both survive the trip from
a Python worker through the JVM: Spark returns the worker's traceback as text, and `from_text` rebuilds the error from
it. (The split into terminal and transient follows dlt.)

Text proves nothing: a user's exception may say what an error of this package says. So in a worker the text of an error
carries a mark, a random number of the session that only its workers know, and only text with the mark decides anything.
"""

from __future__ import annotations

import os
import re
import secrets
from typing import ClassVar, Final

from spark_ext.masking import mask

# What is kept when something is refused before any data moved, and when a sink fails before its commit.
NOTHING_DONE: Final = "nothing was read or written"
NOTHING_VISIBLE: Final = "nothing of this epoch is visible; what was committed before is untouched"

_MARK_VARIABLE: Final = "SPARK_EXT_ERROR_MARK"
_MARK: Final = secrets.token_hex(4)  # of this driver's workers


def for_workers() -> dict[str, str]:
    """The environment variable by which a worker knows the mark."""
    return {_MARK_VARIABLE: _MARK}


def known_mark() -> str:
    """The mark of this session's workers: in a worker the one that it was given, in a driver its own."""
    return os.environ.get(_MARK_VARIABLE) or _MARK


def workers_mark() -> str:
    """The mark that this worker was given; "" in a process that is not one."""
    return os.environ.get(_MARK_VARIABLE, "")


class SparkExtError(Exception):
    """Base of every error that spark-ext raises on purpose.

    Secrets that the process knows are masked in all texts (see `masking`).

    Args:
        what: what happened, one sentence.
        operator: where: the uid of a job, source, query or sink, with channel and epoch if they are known.
        kept: what is safe: the state that was not touched.
        do: what to do next.
    """

    code: ClassVar[str] = "SPARK_EXT"
    """Stable name of the kind of error, used in tables and by `from_text`."""

    stack: str = ""
    """Spark's and the worker's stack traces, for an error that came through Spark; not part of the message."""

    label: str = ""
    """The type of failure that it stands for, such as USER_CODE, which its message then begins with; "": its code."""

    def __init__(self, what: str, *, operator: str = "", kept: str = "", do: str = "") -> None:
        parts = (" ".join(mask(_without_mark(text)).split()) for text in (what, operator, kept, do))
        self.what, self.operator, self.kept, self.do = parts
        super().__init__(self.what)

    def __str__(self) -> str:
        mark = os.environ.get(_MARK_VARIABLE)
        lines = [f"[{self.code} {mark}] {self.what}" if mark else f"[{self.label or self.code}] {self.what}"]
        lines += [f"  {label} {text}" for label, text in self._details() if text]
        return "\n".join(lines)

    def with_stack(self, stack: str) -> SparkExtError:
        """The same error, with the stack traces of what it came through."""
        self.stack = stack
        return self

    def labelled(self, label: str) -> SparkExtError:
        """The same error, whose message begins with a type of failure in place of its code; "": with its code."""
        self.label = label
        return self

    def advising(self, query: str) -> SparkExtError:
        """The same error, with the query's name in its advice: what raised it may not know it."""
        self.do = self.do.replace("<query>", query)
        return self

    def within(self, who: str) -> SparkExtError:
        """The same error, placed in a job or query unless it names it: what raised it may know its own uid only."""
        if who in self.operator:
            return self
        operator = who if not self.operator or self.operator in who else f"{who}, {self.operator}"
        placed = _rebuild(type(self), self.what, operator, self.kept, self.do)
        placed.__dict__.update({**self.__dict__, "operator": placed.operator})
        placed.__cause__ = self.__cause__
        return placed

    def _details(self) -> tuple[tuple[str, str], ...]:
        return (("at:  ", self.operator), ("kept:", self.kept), ("do:  ", self.do))

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.what, self.operator, self.kept, self.do), dict(self.__dict__))


def _rebuild(kind: type[SparkExtError], what: str, operator: str, kept: str, do: str) -> SparkExtError:
    # Bypasses the constructor of `kind`: a subclass defined elsewhere may require other arguments.
    error = kind.__new__(kind, what)
    SparkExtError.__init__(error, what, operator=operator, kept=kept, do=do)
    return error


class TerminalError(SparkExtError):
    """Retrying the epoch gives the same error: the query stops, nothing is retried."""

    code = "TERMINAL"


class TransientError(SparkExtError):
    """The outside world may recover: the query is restarted with back-off, up to the job's limit."""

    code = "TRANSIENT"


class ConfigurationError(TerminalError):
    """An option, uid, schema, path or plan was refused before any data moved."""

    code = "CONFIGURATION"


class EnvironmentProblem(ConfigurationError):
    """Java, the Delta jar or the worker's Python is missing or has the wrong version."""

    code = "ENVIRONMENT"


class DataError(TerminalError):
    """Input that cannot be read as declared: a truncated file, a column of another type."""

    code = "DATA"


class StateError(TerminalError):
    """The job's state directory cannot be used as it is: it belongs to another job, is read-only, or partly deleted."""

    code = "STATE"


class JobRunningError(StateError):
    """Another run of the job is under way. Transient for those that can wait: nothing was changed."""

    code = "RUNNING"


class OffsetError(StateError):
    """A stored offset does not belong to the source it was given to."""

    code = "OFFSET"


class FencedError(TerminalError):
    """A newer incarnation of the job owns the state and the targets; this one can no longer commit."""

    code = "FENCED"

    @classmethod
    def by(cls, newer: int, own: int, target: str, operator: str) -> FencedError:
        """The error of an incarnation that finds its target, such as "the table", claimed by a newer one."""
        return cls(
            f"incarnation {newer} of the job has claimed {target}; this is incarnation {own}",
            operator=operator,
            kept="everything that was committed; this incarnation adds nothing",
            do="nothing: the newer start of the job continues; make sure that only one is started",
        )


class UnsupportedTableError(ConfigurationError):
    """The table needs a feature that the connector does not support."""

    code = "UNSUPPORTED_TABLE"


class StorageError(TransientError):
    """A read or write of the state directory or a target failed: a full disk, a lost mount, a network fault."""

    code = "STORAGE"


class FinalizationTimeout(TransientError):
    """An operator was not finalized in time: the query is neither finished nor closed; the next start continues."""

    code = "FINALIZATION_TIMEOUT"


class SparkLostError(TerminalError):
    """Spark's JVM or server has died, or its session was stopped: nothing can be restarted in this process."""

    code = "SPARK_LOST"


class StallError(TerminalError):
    """A query makes no progress, and the setting `on_stall` says that it is to be ended then."""

    code = "STALLED"


class PreparedLostError(SparkExtError):
    """What an epoch's tasks had prepared is lost. The commit is not retried; the epoch is, from its source."""

    code = "PREPARED_LOST"


class ReplayError(TerminalError):
    """A replayed epoch would give other rows than before, because its input has changed since."""

    code = "REPLAY"


class CommitError(TransientError):
    """A sink could not commit an epoch within its retries; the next attempt finds out whether it took effect."""

    code = "COMMIT"
    retry_now: bool = True
    """False if the target itself has asked not to be called again soon: no further attempt is made in this epoch."""


class CheckpointError(TransientError):
    """A checkpoint of the job was refused or aborted. The job continues, and the next one is independent of it."""

    code = "CHECKPOINT"


class JobFailedError(SparkExtError):
    """A job ended in FAILED.

    `cause_text` holds the message of the query's error and, if the failure came through Spark, the stack traces of
    Spark and of the worker.
    """

    code = "JOB_FAILED"
    cause_text: str = ""

    def __init__(self, what: str, *, operator: str = "", kept: str = "", do: str = "", cause_text: str = "") -> None:
        super().__init__(what, operator=operator, kept=kept, do=do)
        self.cause_text = mask(cause_text)


# How the history of a query is discarded, and how input is read again, without writing rows twice into a target.
RESET: Final = "job.reset('<query>', cascade=True), with new or emptied targets: all input is read and written again"
NEW_QUERY: Final = "in a new query with uids and a target of its own, in place of this one (job.remove)"


def refused(what: str, who: str, do: str, kept: str = NOTHING_DONE) -> ConfigurationError:
    """The refusal of an option, schema, path or plan by an operator, with what to change and what is safe."""
    return ConfigurationError(what, operator=who, kept=kept, do=do)


_RENDERED = re.compile(
    r"[\w.]+: \[(?P<code>[A-Z_]+)(?: (?P<mark>[0-9a-f]{8}))?\] (?P<what>[^\n]*)"
    r"(?:\n\s*at: +(?P<operator>[^\n]*))?(?:\n\s*kept: +(?P<kept>[^\n]*))?(?:\n\s*do: +(?P<do>[^\n]*))?"
)


def from_text(text: str, *, marked: bool = False) -> SparkExtError | None:
    """The last error of this package in a stack trace, as an object; None if it has none.

    With `marked` only what this session's workers have raised counts; else any text in the form of an error, such as
    the message of a user's exception.
    """
    # A subclass without a code of its own has its parent's, and is rebuilt as its parent.
    kinds = {kind.code: kind for kind in reversed(_all_kinds(SparkExtError))}
    for match in reversed(list(_RENDERED.finditer(text))):
        kind = kinds.get(match["code"])
        if kind is not None and (match["mark"] == known_mark() or not marked):
            details = (match[name] or "" for name in ("operator", "kept", "do"))
            return _rebuild(kind, match["what"], *details)
    return None


_CODE = re.compile(r"\[(?P<code>[A-Z_]+)(?: (?P<mark>[0-9a-f]{8}))?\] ")


def code_in(message: str, *, marked: bool = True) -> str:
    """The code of the error of this package whose message this is, or ""; for `marked` see `from_text`."""
    match = _CODE.match(message)
    return "" if match is None or (marked and match["mark"] != known_mark()) else match["code"]


def placed(problem: Exception, who: str, what: str, *, kept: str, do: str) -> SparkExtError:
    """Any failure as one of our errors, which names the job or query; one of ours keeps its kind and text."""
    if isinstance(problem, SparkExtError):
        return problem.within(who)
    found = TransientError(f"{what}: {type(problem).__name__}: {problem}", operator=who, kept=kept, do=do)
    found.__cause__ = problem  # says whose failure it is
    return found


def _without_mark(text: str) -> str:
    return text.replace(f" {known_mark()}]", "]")


def _all_kinds(kind: type[SparkExtError]) -> list[type[SparkExtError]]:
    return [kind, *(grandchild for child in kind.__subclasses__() for grandchild in _all_kinds(child))]
