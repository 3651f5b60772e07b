"""A private name that the installed Spark lacks, or has in another form: known by what a use of it raises."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps
from typing import Final, ParamSpec, TypeVar

from spark_ext.errors import EnvironmentProblem
from spark_ext.spark.backend.private_names import DRIVER, JVM

_P = ParamSpec("_P")
_T = TypeVar("_T")

_SAYS: Final = re.compile(
    r"Method (\w+)\([^\n]*\) does not exist|\b(\w+\$?) does not exist in the JVM|Constructor [\w.$]*?(\w+)\("
    r"|has no attribute '(\w+)'|Attribute `(\w+)` is not supported|cannot import name '(\w+)'"
    r"|(?:NoSuchField|NoSuchMethod|ClassNotFound)Exception: (?:[\w.$]+\.)?(\w+\$?)"
)
_NO_CLASS: Final = "'JavaPackage' object is not callable"  # how py4j names a class that it has not found


def missing_name(problem: BaseException) -> str | None:
    """The private name whose lack has raised something; None if that has another cause."""
    if isinstance(problem, TypeError) and str(problem) == _NO_CLASS:
        return "class"
    if not isinstance(problem, (AttributeError, ImportError)) and "py4j" not in type(problem).__module__:
        return None
    if str(problem).startswith("'NoneType' object"):
        return None  # what is gone, such as the context of a stopped session, is not lacking
    found = _SAYS.search(str(problem))
    name = None if found is None else next(filter(None, found.groups()))
    return name if name is not None and _needed_by(name) else None


def by_name(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """A function that says of a missing name what needs it."""

    @wraps(function)
    def called(*args: _P.args, **named: _P.kwargs) -> _T:
        try:
            return function(*args, **named)
        except Exception as problem:
            name = missing_name(problem)
            if name is None:
                raise
            import pyspark

            needed = f" for: {', '.join(_needed_by(name))}" if _needed_by(name) else ""
            raise EnvironmentProblem(
                f"the installed Spark, {pyspark.__version__}, has no '{name}'{needed}",
                operator="the Spark session",
                kept="all committed epochs",
                do="use a release of Spark that the page 'Supported versions' names",
            ) from problem

    return called


def all_by_name(kind: type[_T]) -> type[_T]:
    """A class whose methods are so."""
    for name, found in list(vars(kind).items()):
        if isinstance(found, staticmethod):
            setattr(kind, name, staticmethod(by_name(found.__func__)))
        elif callable(found) and not name.startswith("_"):
            setattr(kind, name, by_name(found))
    return kind


def _needed_by(name: str) -> list[str]:
    """What needs a name, as the lists say."""
    return [
        feature
        for names in (DRIVER, JVM)
        for feature, owners in names.items()
        for owner, text in owners.items()
        if name in (*text.split(), re.split(r"[.$]", owner.rstrip("$"))[-1])
    ]
