"""Python's tracebacks as text, read into exceptions. Pure.

In a traceback of one exception the frames come first and the message last, so everything after the first line that is
not indented is the message, whatever it looks like. A chain is ambiguous: what follows a message may be another
exception, or a part of the message that imitates one. Spark helps: its workers catch an exception in their `main`, so
the exception whose frames begin there is the last one of the chain.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Collection
from dataclasses import replace
from typing import Final

from spark_ext.errors import code_in
from spark_ext.failures.evidence import TRACEBACK, Frame, Link, Raised
from spark_ext.failures.owners import owner_of_file

_FRAME: Final = re.compile(r'\s+File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<function>.+))?$')
_HEAD: Final = re.compile(r"(?P<kind>[A-Za-z_][\w.]*(?:\.<locals>\.\w+)*)(?::(?: (?P<message>.*))?)?$", re.DOTALL)
_BETWEEN: Final = re.compile(
    r"\n\n(?P<link>The above exception was the direct cause of the following exception"
    r"|During handling of the above exception, another exception occurred):\n\n(?=Traceback \(most recent)"
)
_ENTRY: Final = re.compile(
    r"pyspark(?:\.zip)?/(?:worker|sql/worker/\w+|sql/streaming/\w+_runner|daemon)\.py$|clientserver\.py$"
)
"""Files in which Spark's processes catch what they run has raised."""
CRASHED: Final = "Python worker exited unexpectedly (crashed)"
"""How the message of Spark's exception begins when a worker has gone."""

_CRASH: Final = re.compile(
    rf"{re.escape(CRASHED)}: Fatal Python error: (?P<what>[^\n]*)\n\n"
    r"(?P<stacks>(?:Current thread|Thread) 0x[^\n]*\n.*)",
    re.DOTALL,
)
_CRASHED_FRAME: Final = re.compile(r'^\s+File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<function>.+)$', re.MULTILINE)
_ERRNO: Final = re.compile(r"\[Errno (\d+)\] ")


def exceptions(text: str, user_packages: Collection[str] = (), *, marked: bool = True) -> tuple[Raised, ...]:
    """The chain of exceptions in a traceback, outermost first; empty if there is none.

    Args:
        text: begins with a traceback, or with some words before it.
        user_packages: see `owners.owner_of_file`.
        marked: see `errors.code_in`.
    """
    begin = text.find(TRACEBACK)
    if begin < 0:
        return ()
    blocks, links = [], []
    rest = text[begin:]
    while True:
        between = _BETWEEN.search(rest)
        block = rest if between is None else rest[: between.start()]
        raised = _block(block, user_packages)
        if between is None or (raised is not None and raised.frames and _ENTRY.search(raised.frames[-1].file)):
            blocks.append(_block(rest, user_packages))
            break
        blocks.append(raised)
        links.append(Link.CAUSE if between["link"].startswith("The above") else Link.CONTEXT)
        rest = rest[between.end() :]
    found: list[Raised] = []
    for number, raised in enumerate(reversed(blocks)):
        if raised is not None:
            link = Link.OUTERMOST if number == 0 else links[len(links) - number]
            found.append(_linked(raised, link, marked=marked))
    return tuple(found)


def _linked(raised: Raised, link: Link, *, marked: bool) -> Raised:
    ours = raised.kind.startswith("spark_ext.")
    code = code_in(raised.message, marked=marked or not ours)
    return replace(raised, link=link, code=code)


def _block(text: str, user_packages: Collection[str]) -> Raised | None:
    # Not `splitlines`: a message may contain what that takes for the end of a line.
    lines = text.split("\n")
    frames: list[Frame] = []
    for number, line in enumerate(lines[1:], 1):
        match = _FRAME.match(line)
        if match is not None:
            file = match["file"]
            frames.append(Frame(owner_of_file(file, user_packages), file, int(match["line"]), match["function"] or ""))
        elif line[:1].strip():
            return headed("\n".join(lines[number:]), tuple(reversed(frames)))
    return None


def crash(message: str, user_packages: Collection[str] = ()) -> Raised | None:
    """A worker that ended in native code, with the frames that Python's fault handler wrote; None if it is not one.

    Args:
        message: of Spark's exception.
        user_packages: see `owners.owner_of_file`.
    """
    match = _CRASH.match(message)
    if match is None:
        return None
    frames = [
        Frame(owner_of_file(one["file"], user_packages), one["file"], int(one["line"]), one["function"])
        for one in _CRASHED_FRAME.finditer(match["stacks"].partition("\n\n")[0])
    ]
    return Raised(
        f"signal.{match['what'].strip().title().replace(' ', '')}", match["what"].strip(), frames=tuple(frames)
    )


def headed(text: str, frames: tuple[Frame, ...] = ()) -> Raised | None:
    """An exception of which only `Kind: message` is known, and perhaps its frames, innermost first."""
    match = _HEAD.match(text.strip())
    if match is None:
        return None
    message = match["message"] or ""
    number = _ERRNO.match(message)
    kind = full_name(match["kind"])
    return Raised(
        kind, message, frames=frames, bases=known_bases(kind), errno=int(number[1]) if number is not None else 0
    )


def full_name(kind: str) -> str:
    """A class as tracebacks name it, with its package: they leave out `builtins`."""
    return f"builtins.{kind}" if isinstance(getattr(builtins, kind, None), type) else kind


def known_bases(kind: str) -> tuple[str, ...]:
    """What a built-in exception derives from; empty for any other class."""
    package, _, name = kind.rpartition(".")
    found = getattr(builtins, name, None) if package == "builtins" else None
    return names_of_bases(found) if isinstance(found, type) else ()


def names_of_bases(kind: type) -> tuple[str, ...]:
    """The classes that a class derives from, without those that every exception derives from."""
    return tuple(
        f"{base.__module__}.{base.__qualname__}"
        for base in kind.__mro__[1:]
        if base not in (Exception, BaseException, object)
    )
