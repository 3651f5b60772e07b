"""Failures that are made by really running Spark, each with what a person would say of it.

A case is a function that makes one failure happen and lets it pass out, as it reaches a driver. Its file is the user's
code of the case. `evidence_of` reads the failure while Spark is still there; what is read is also recorded, so that the
rules can be tested in milliseconds against every failure. Cases that test a rule which another case tests as well are
kept as their record alone, with what a person said of it.
"""

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

from pyspark.sql import SparkSession

Cause: TypeAlias = "Callable[[SparkSession, Path], object]"
"""Makes the failure happen: takes a session and an empty folder, and raises what the driver gets."""


@dataclass(frozen=True)
class Case:
    name: str  # `area.words`
    type: str  # the right one: `USER_CODE`, `NETWORK`, ...
    origin: str  # whose it is: see `Origin`
    decision: str  # what is to be done: see `Response`
    cause: "Cause | None" = None  # None: only its record is kept
    line: str = ""  # a part of the user's line that is to be named, if any
    subject: str = ""  # what could not be serialized
    where: str = "local"  # in the test process; or on a `cluster`, or in a `process` of its own, which it may kill
    held_out: bool = False  # not looked at while the rules were written
    conf: Mapping[str, str] = field(default_factory=dict)  # of Spark, for a driver of its own


CASES: Final[dict[str, Case]] = {}

HELD_OUT: Final = "fifth."
"""The set of cases that the rules have not seen."""


def case(name: str, type: str, origin: str, decision: str, **more: Any) -> Callable[[Cause], Cause]:

    def declare(cause: Cause) -> Cause:
        assert name not in CASES, name
        CASES[name] = Case(name, type, origin, decision, cause, held_out=name.startswith(HELD_OUT), **more)
        return cause

    return declare


def all_cases() -> Iterator[Case]:
    from tests.failures import cases

    for module in pkgutil.iter_modules(cases.__path__):
        importlib.import_module(f"{cases.__name__}.{module.name}")
    for name in sorted(CASES):
        yield CASES[name]
