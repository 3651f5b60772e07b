"""Failures that are made by really running Spark, each with what a person would say of it.

A case is a function that makes one failure happen and lets it pass out, as it reaches a driver. Its file is the user's
code of the case. `evidence_of` reads the failure while Spark is still there; what is read is also recorded, so that the
rules can be tested in milliseconds against every failure. Cases that test a rule which another case tests as well are
kept as their record alone, with what a person said of it.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Cause: TypeAlias = "Callable[[SparkSession, Path], object]"
"""Makes the failure happen: takes a session and an empty folder, and raises what the driver gets."""


@dataclass(frozen=True)
class Case:
    """A failure, and what a person says of it."""

    name: str
    """`area.words`."""
    type: str
    """The type that is right: `USER_CODE`, `NETWORK`, ..."""
    origin: str
    """Whose it is: `user`, `dependency` (an installed package that the user's code called), `library` (a source, sink
    or package that no code of the user's called), `spark`."""
    decision: str
    """What is to be done: `stop`, `restart once`, `restart`, `restore`, `ask`."""
    cause: Cause | None = None
    """None: only its record is kept."""
    line: str = ""
    """A part of the user's line that is to be named; "" if there is none."""
    subject: str = ""
    """What could not be serialized; "" for other types."""
    where: str = "local"
    """`local`: in a session of the test process; `cluster`: on a standalone cluster, whose processes it may kill;
    `process`: in a driver of its own, which it may kill."""
    held_out: bool = False
    """Not looked at while the rules were written."""
    conf: tuple[tuple[str, str], ...] = ()
    """Settings of Spark that it needs, for a driver of its own."""


CASES: Final[dict[str, Case]] = {}

LOOKED_AT: Final = ("fourth.",)
"""Names of sets that were held out, and have led to rules since."""


def case(
    name: str,
    *,
    type: str,
    origin: str,
    decision: str,
    line: str = "",
    subject: str = "",
    where: str = "local",
    held_out: bool = False,
    conf: dict[str, str] | None = None,
) -> Callable[[Cause], Cause]:
    """Declare a case; see `Case`."""

    def declare(cause: Cause) -> Cause:
        assert name not in CASES, name
        settings = tuple((conf or {}).items())
        unseen = held_out and not name.startswith(LOOKED_AT)
        CASES[name] = Case(name, type, origin, decision, cause, line, subject, where, unseen, settings)
        return cause

    return declare


def all_cases() -> Iterator[Case]:
    """All cases, by name."""
    from tests.failures import cases

    for module in pkgutil.iter_modules(cases.__path__):
        importlib.import_module(f"{cases.__name__}.{module.name}")
    for name in sorted(CASES):
        yield CASES[name]
