"""Python's tracebacks as text, read into exceptions. Pure.

In a traceback of one exception the frames come first and the message last, so everything after the first line that is
not indented is the message, whatever it looks like. A chain is ambiguous: what follows a message may be another
exception, or a part of the message that imitates one. Spark helps: its workers catch an exception in their `main`, so
the exception whose frames begin there is the last one of the chain.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection
from dataclasses import replace
from typing import Final

from spark_ext.errors import code_in
from spark_ext.failures.evidence import CALL, STATEMENT, TRACEBACK, Frame, Link, Owner, Raised
from spark_ext.failures.owners import owner_of_file, owner_of_function

_FRAME: Final = re.compile(r'\s+File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<function>.+))?$')
_HEAD: Final = re.compile(r"(?P<kind>[A-Za-z_][\w.]*(?:\.<locals>\.\w+)*)(?::(?: (?P<message>.*))?)?$", re.DOTALL)
_SILENT: Final = re.compile(r"(?P<kind>(?:[a-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Timeout|Iteration))\n")
"""An exception without a message, before what Spark says of it."""
_BETWEEN: Final = re.compile(
    r"\n\n(?P<link>The above exception was the direct cause of the following exception"
    r"|During handling of the above exception, another exception occurred):\n\n"
    r"(?=Traceback \(most recent|  \+ Exception Group Traceback)"
)
_STATEMENT: Final = re.compile(r"(?:^|[:;]\s*)(?:raise|assert)\b")
_GROUP: Final = "+ Exception Group Traceback (most recent call last):"
_INSIDE: Final = re.compile(r"^ *\+-\+-+ 1 -+$")  # above the first exception of a group; its lines are indented further
_ENTRY: Final = re.compile(  # files in which Spark's processes catch what they run has raised
    r"pyspark(?:\.zip)?/(?:worker|sql/worker/\w+|sql/streaming/\w+_runner|daemon)\.py$|clientserver\.py$"
)
CRASHED: Final = "Python worker exited unexpectedly (crashed)"  # begins Spark's message when a worker has gone

_CRASH: Final = re.compile(
    rf"{re.escape(CRASHED)}: Fatal Python error: (?P<what>[^\n]*)\n\n"
    r"(?P<stacks>(?:Current thread|Thread) 0x[^\n]*\n.*)",
    re.DOTALL,
)
_CRASHED_FRAME: Final = re.compile(r'^\s+File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<function>.+)$', re.MULTILINE)
_ERRNO: Final = re.compile(r"\[Errno (\d+)\] ")


def begin_of(text: str) -> int:
    """Where the first traceback of a text begins, perhaps of a group; -1: not found."""
    alone, group = text.find(TRACEBACK), text.find(_GROUP)
    return group if 0 <= group < alone else alone


def exceptions(text: str, user_packages: Collection[str] = (), *, marked: bool = True) -> tuple[Raised, ...]:
    """The chain of exceptions in a traceback, perhaps with words before it, outermost first; empty without one."""
    begin = begin_of(text)
    if begin < 0:
        return ()
    blocks, links = [], []
    rest = text[begin:]
    while True:
        if rest.lstrip(" ").startswith(_GROUP):
            # What is inside has led to the failure, rather than what came before it.
            return _group(rest, user_packages, marked=marked)
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


def _group(text: str, packages: Collection[str], *, marked: bool) -> tuple[Raised, ...]:
    """A group, and the chain of its first exception, which is written below the group, with a wider margin."""
    head, *lines = text.split("\n")
    first = next((at for at, line in enumerate(lines) if _INSIDE.match(line)), len(lines))
    outer = _block("\n".join([TRACEBACK, *_without_margin(lines[:first])]), packages)
    width = lines[first].index("+-+") + 2 if first < len(lines) else 0
    inside: list[str] = []
    for line in lines[first + 1 :]:
        if line.startswith(" " * width + "+--"):
            break
        inside.append(line)
    plain = _without_margin(inside)
    if plain and plain[0].startswith("Exception Group "):
        chain = exceptions("\n".join([head, *(line[width - 2 :] for line in inside[1:])]), packages, marked=marked)
    else:
        chain = exceptions("\n".join(plain), packages, marked=marked)
    if not chain and (alone := headed("\n".join(plain))) is not None:  # it was never raised
        chain = (_linked(alone, Link.OUTERMOST, marked=marked),)
    if outer is None:
        return chain
    below = [replace(one, link=Link.CAUSE) if one.link is Link.OUTERMOST else one for one in chain]
    return (_linked(outer, Link.OUTERMOST, marked=marked), *below)


def _without_margin(lines: list[str]) -> list[str]:
    """What stands behind `| `; a line of a message may lack it."""
    parted = [line.partition("| ") for line in lines]
    return [rest if bar and not margin.strip() else margin + bar + rest for margin, bar, rest in parted]


def _linked(raised: Raised, link: Link, *, marked: bool) -> Raised:
    ours = raised.kind.startswith("spark_ext.")
    code = code_in(raised.message, marked=(marked and not _of_driver(raised)) or not ours)
    return replace(raised, link=link, code=code)


def _of_driver(raised: Raised) -> bool:
    """Whether this package has raised it in a function that the JVM has called in the driver.

    Errors have no mark there. Its frames stand before any message, which could imitate them.
    """
    ends = raised.frames and (raised.frames[0].owner, raised.frames[-1].function)
    return ends == (Owner.SPARK_EXT, "_call_proxy") and bool(_ENTRY.search(raised.frames[-1].file))


def _block(text: str, user_packages: Collection[str]) -> Raised | None:
    # Not `splitlines`: a message may contain what that takes for the end of a line.
    lines = text.split("\n")
    frames: list[Frame] = []
    by = ""
    for number, line in enumerate(lines[1:], 1):
        match = _FRAME.match(line)
        if match is not None:
            file = match["file"]
            owner = owner_of_function(file, match["function"] or "", user_packages)
            frames.append(Frame(owner, file, int(match["line"]), match["function"] or ""))
            by = ""
        elif line[:1].strip():
            found = headed("\n".join(lines[number:]), tuple(reversed(frames)))
            return replace(found, by=by) if found is not None else None
        elif frames and not by and line.strip():
            by = STATEMENT if _STATEMENT.search(line.strip()) else CALL
    return None


def crash(message: str, user_packages: Collection[str] = ()) -> Raised | None:
    """A worker that ended in native code, with the frames that Python's fault handler wrote; None if it is not one."""
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
    """An exception known by `Kind: message` only, and perhaps its frames, innermost first."""
    plain = text.strip()
    match = _HEAD.match(plain) or _SILENT.match(plain)
    if match is None:
        return None
    message = match.groupdict().get("message") or ""
    number = _ERRNO.match(message)
    kind = full_name(match["kind"])
    return Raised(
        kind, message, frames=frames, bases=known_bases(kind), errno=int(number[1]) if number is not None else 0
    )


def full_name(kind: str) -> str:
    """A class as tracebacks name it, with its package: they leave out `builtins`."""
    return f"builtins.{kind}" if isinstance(getattr(sys.modules["builtins"], kind, None), type) else kind


def known_bases(kind: str) -> tuple[str, ...]:
    """What an exception derives from, if its module is loaded, as it is where the exception was raised; else empty."""
    package, _, name = kind.rpartition(".")
    # Not `getattr`: a module may load others for a name that it does not have.
    found = vars(sys.modules[package]).get(name) if package in sys.modules else None
    return names_of_bases(found) if isinstance(found, type) and issubclass(found, BaseException) else ()


def names_of_bases(kind: type) -> tuple[str, ...]:
    """The classes that a class derives from, without those that every exception derives from."""
    return tuple(
        f"{base.__module__}.{base.__qualname__}"
        for base in kind.__mro__[1:]
        if base not in (Exception, BaseException, object)
    )
