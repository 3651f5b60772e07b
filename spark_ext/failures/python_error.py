"""The evidence of an exception of this process. Pure."""

from __future__ import annotations

import dis
from collections.abc import Callable, Collection, Iterator
from typing import Final

from spark_ext.errors import SparkExtError
from spark_ext.failures.evidence import CALL, MOST_EXCEPTIONS, MOST_FRAMES, STATEMENT, Frame, Link, Raised
from spark_ext.failures.owners import owner_of_function
from spark_ext.failures.python_text import names_of_bases


def exceptions(
    failure: BaseException,
    user_packages: Collection[str] = (),
    below: Callable[[BaseException], list[Raised]] = lambda error: [],
) -> list[Raised]:
    """The chain of an exception, outermost first."""
    chain: list[Raised] = []
    for error, link in linked(failure):
        chain.append(_raised(error, link, user_packages))
        further = below(error)
        if further:
            return [*chain, *further][:MOST_EXCEPTIONS]
    return chain


def linked(failure: BaseException) -> Iterator[tuple[BaseException, Link]]:
    """An exception and those that led to it, outermost first; some of them, if they are too many."""
    error: BaseException | None = failure
    link, seen = Link.OUTERMOST, set[int]()
    while error is not None and id(error) not in seen and len(seen) < MOST_EXCEPTIONS:
        seen.add(id(error))
        yield error, link
        error, link = _following(error)


def _following(error: BaseException) -> tuple[BaseException | None, Link]:
    """The cause or context of an exception, and how it is related to it; the first exception of a group."""
    inside = within_group(error)
    if inside is not None:
        return inside, Link.CAUSE
    if error.__cause__ is not None:
        return error.__cause__, Link.CAUSE
    return (None if error.__suppress_context__ else error.__context__), Link.CONTEXT


def within_group(error: BaseException) -> BaseException | None:
    """The first exception of a group, of Python's own or of the package `exceptiongroup`; None if it is not one."""
    if not any(base.__name__ == "BaseExceptionGroup" for base in type(error).__mro__):
        return None
    inside = getattr(error, "exceptions", ())
    return inside[0] if inside and isinstance(inside[0], BaseException) else None


def said_by(error: BaseException) -> str:
    """The message of an exception; says so if the exception cannot give one, as one of a JVM that has gone."""
    try:
        return str(error)
    except Exception as problem:
        return f"<no message: {type(problem).__name__}>"


def raised_by(error: BaseException) -> str:
    """What raised an exception, in the words of `Raised.by`; "" if it has no frame."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return ""
    code, at = trace.tb_frame.f_code.co_code, trace.tb_lasti
    return STATEMENT if 0 <= at < len(code) and dis.opname[code[at]] == "RAISE_VARARGS" else CALL


_OTHER_NUMBERS: Final = frozenset({"ssl", "socket"})  # their errors' `errno` is OpenSSL's or the resolver's


def errno_of(error: BaseException) -> int:
    """The operating system's number of an error; 0 if it has none."""
    if not isinstance(error, OSError) or type(error).__module__ in _OTHER_NUMBERS:
        return 0
    return error.errno if isinstance(error.errno, int) else 0


def _raised(error: BaseException, link: Link, packages: Collection[str]) -> Raised:
    kind = type(error)
    frames: list[Frame] = []
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        owner = owner_of_function(code.co_filename, code.co_name, packages)
        frames.append(Frame(owner, code.co_filename, trace.tb_lineno, code.co_name))
        trace = trace.tb_next
    return Raised(
        f"{kind.__module__}.{kind.__qualname__}",
        said_by(error),
        link,
        tuple(reversed(frames[-MOST_FRAMES:])),
        names_of_bases(kind),
        errno=errno_of(error),
        code=error.code if isinstance(error, SparkExtError) else "",
        by=raised_by(error),
    )
