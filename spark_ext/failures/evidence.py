"""What is known of a failure: the exceptions that led to it, as data. Pure.

Evidence is read at the edge, from the driver's JVM (`spark.backend.failures`), from an exception of this process
(`of_exception`) or from text (`failures.text`), and everything that judges a failure sees this form alone. Each
exception keeps its own class, message and frames, so that a message is never taken for an exception.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any, Final

from spark_ext.masking import mask

LONGEST_MESSAGE: Final = 2_000  # characters of one exception's message that are kept
MOST_FRAMES: Final = 60  # frames of one exception that are kept: the innermost ones
TRACEBACK: Final = "Traceback (most recent call last):"  # how what Python writes of an exception begins
MOST_EXCEPTIONS: Final = 24  # exceptions of one failure that are kept, outermost first


class Owner(str, Enum):
    """To whom the code of a frame belongs."""

    USER = "user"
    """Python outside the installed packages, a notebook cell, a file that was added to the session; a class of a jar
    that the user has added."""
    LIBRARY = "library"
    """An installed Python package; a Java library."""
    SPARK_EXT = "spark_ext"
    """This package."""
    SPARK = "spark"
    """Spark and pyspark."""
    STANDARD = "standard"
    """Python's and Java's standard libraries: they belong to their caller."""


@dataclass(frozen=True)
class Frame:
    """One frame of a stack."""

    owner: Owner
    file: str
    """Path of a Python file; name of a Java source file; "" if unknown."""
    line: int
    """From 1; 0 if unknown."""
    function: str
    """A Python function; a Java method with its class: `java.net.Socket.connect`."""

    @property
    def place(self) -> str:
        """For people: `flights.py, line 12, in half`."""
        line = f", line {self.line}" if self.line else ""
        return f"{self.file}{line}, in {self.function}" if self.function else f"{self.file}{line}"


class Link(str, Enum):
    """How an exception is related to the one before it in the chain."""

    OUTERMOST = "outermost"
    CAUSE = "cause"
    """It caused the one before it."""
    CONTEXT = "context"
    """Python was handling it when the one before it was raised. It need not have anything to do with it."""
    SUPPRESSED = "suppressed"
    """It occurred while the one before it was being handled in Java."""
    REPORTED = "reported"
    """Another process raised it; the one before it reports it as text: of a Python worker, or of an executor whose
    exception could not be read by the driver."""


@dataclass(frozen=True)
class Raised:
    """One exception of the chain."""

    kind: str
    """Its class with package: `java.net.ConnectException`, `builtins.ZeroDivisionError`."""
    message: str = ""
    link: Link = Link.OUTERMOST
    frames: tuple[Frame, ...] = ()
    """Innermost first."""
    bases: tuple[str, ...] = ()
    """The classes that its class derives from, if known."""
    condition: str = ""
    """Spark's error condition: `STATE_STORE_KEY_ROW_FORMAT_VALIDATION_FAILURE`; "" if it has none."""
    sqlstate: str = ""
    errno: int = 0
    """The operating system's number; 0 if it has none."""
    code: str = ""
    """The code of an error of this package. Only what proves that it is one sets it; the message does not."""
    context: str = ""
    """The user's expression and place that Spark holds responsible, from the exception's query context."""
    by: str = ""
    """What raised it in its innermost frame of Python: `raise`, a statement; `call`, anything else, such as a function
    without frames of its own; "" if unknown."""

    @property
    def python(self) -> bool:
        """Whether Python raised it."""
        return any(frame.file.endswith(".py") for frame in self.frames) or self.kind.startswith("builtins.")

    @property
    def by_user(self) -> bool:
        """Whether a `raise` or `assert` of the user's own has raised it."""
        return self.by == STATEMENT and bool(self.frames) and self.frames[0].owner is Owner.USER

    @property
    def words(self) -> str:
        """What its class itself says: the message without what it quotes of others, which users may have written."""
        if self.kind == _STREAMING or self.condition == USER_RAISED:
            return ""
        if self.kind.startswith(_QUOTE_SQL):
            return _SQL.split(self.message, maxsplit=1)[0]
        if not self.kind.startswith(_QUOTES):
            return self.message
        own = self.message.partition(TRACEBACK)[0]
        task = LOST_TASK.search(own)
        return own[: task.end()] if task is not None and _EXCEPTION.match(own, task.end()) else own

    @property
    def name(self) -> str:
        """The class without package."""
        return self.kind.rpartition(".")[2]


STATEMENT: Final = "raise"  # `Raised.by` of what a statement has raised
CALL: Final = "call"  # `Raised.by` of anything else
USER_RAISED: Final = "USER_RAISED_EXCEPTION"
"""The condition of `raise_error` and `assert_true`, whose message is the user's."""

_STREAMING: Final = "org.apache.spark.sql.streaming.StreamingQueryException"
_QUOTES: Final = ("org.apache.spark.", "py4j.", "pyspark.errors.exceptions.captured.", "delta.exceptions.captured.")
_QUOTE_SQL: Final = ("sqlalchemy.", "psycopg", "asyncpg.")
_SQL: Final = re.compile(r"\n\[SQL: |\nLINE \d+: |\n(?:DETAIL|CONTEXT): ")  # begins what databases quote of a row
LOST_TASK: Final = re.compile(r"Lost task [\d.]+ in stage [\d.]+ \(TID \d+\) \([^)]*\): ")
_EXCEPTION: Final = re.compile(r"(?:[a-z_]\w*\.)+[A-Z]\w*")


@dataclass(frozen=True)
class Evidence:
    """What is known of a failure."""

    chain: tuple[Raised, ...]
    """Outermost first."""
    text: str = field(default="", compare=False)
    """As Spark shows it, for people."""

    @cached_property
    def related(self) -> tuple[Raised, ...]:
        """The exceptions that led to the failure, outermost first."""
        return tuple(
            one
            for at, one in enumerate(self.chain)
            if one.link not in UNRELATED or (at > 0 and _reports(self.chain[at - 1], one))
        )

    @property
    def root(self) -> Raised:
        """The innermost exception that led to the failure."""
        return self.related[-1] if self.related else self.chain[0]

    @property
    def exits(self) -> tuple[str, ...]:
        """Executors that have ended, as Spark reports them: `executor 3: Command exited with code 137`."""
        return tuple(
            f"executor {match['executor']}: {match['reason'].strip()}"
            for raised in self.chain
            if raised.kind == _REPORTS_EXITS
            for match in _EXIT.finditer(raised.words)
        )

    def frames(self) -> Iterator[Frame]:
        """The frames of all exceptions that led to the failure, innermost first."""
        for raised in reversed(self.related):
            yield from raised.frames

    def to_json(self) -> dict[str, Any]:
        """For the ledger: cut to a size, secrets masked, without the text."""
        return {"chain": [_as_json(raised) for raised in self.chain]}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Evidence:
        """What `to_json` has made."""
        return cls(tuple(_raised(one) for one in value["chain"]))


_REPORTS_EXITS: Final = "org.apache.spark.SparkException"
_EXIT: Final = re.compile(r"ExecutorLostFailure \(executor (?P<executor>\S+) [^\n]*?\) Reason: (?P<reason>[^\n]*)")
UNRELATED: Final = (Link.CONTEXT, Link.SUPPRESSED)  # links of exceptions that need not have led to the failure


def _reports(outer: Raised, inner: Raised) -> bool:
    """Whether pyspark raised one exception because the other had been raised by what it ran, without naming a cause."""
    return (
        inner.link is Link.CONTEXT
        and outer.kind.startswith(_OF_PYSPARK)
        and bool(outer.frames)
        and outer.frames[0].owner is Owner.SPARK
    )


_OF_PYSPARK: Final = "pyspark.errors.exceptions.base."


def _as_json(raised: Raised) -> dict[str, Any]:
    given = dataclasses.asdict(raised)
    given["link"] = raised.link.value
    given["message"] = cut(mask(raised.message))
    given["context"] = cut(mask(raised.context))
    given["frames"] = [[one.owner.value, one.file, one.line, one.function] for one in raised.frames[:MOST_FRAMES]]
    return {key: value for key, value in given.items() if key == "kind" or value not in ("", 0, (), [])}


def _raised(given: Mapping[str, Any]) -> Raised:
    frames = tuple(Frame(Owner(owner), *rest) for owner, *rest in given.get("frames", ()))
    plain = {key: value for key, value in given.items() if key not in ("frames", "link", "bases")}
    return Raised(**plain, link=Link(given["link"]), frames=frames, bases=tuple(given.get("bases", ())))


def cut(text: str, longest: int = LONGEST_MESSAGE) -> str:
    """A text of limited length: its beginning and its end."""
    if len(text) <= longest:
        return text
    half = (longest - 20) // 2
    return f"{text[:half]} [...] {text[-half:]}"
