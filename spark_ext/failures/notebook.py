"""Tracebacks as notebooks show them, written as Python writes them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from spark_ext.failures.evidence import TRACEBACK

_BEGIN: Final = re.compile(r"^(?:-{20,}\n)?[A-Za-z_][\w.]* {2,}Traceback \(most recent call last\)$", re.MULTILINE)
_CELL: Final = re.compile(
    r"^(?:File )?(?:<(?P<name>[^>\n]+)>|Cell In ?\[(?P<cell>\d+)\])(?:,|:)? ?(?:line )?(?P<line>\d+)"
    r"(?:, in (?P<in>[\w<>.]+).*)?$"
)
_FILE: Final = re.compile(r"^File (?P<file>[^\s:<][^\n]*?):(?P<line>\d+)(?:, in (?P<in>[\w<>.]+).*)?$")
_OF_JVM: Final = re.compile(
    r"^(?:Analysis|Parse|StreamingQuery|Python|SparkRuntime|Arithmetic|NumberFormat|DateTime|IllegalArgument|QueryExecution"
    r"|UnsupportedOperation|SparkUpgrade|SparkNoSuchElement|ArrayIndexOutOfBounds|Unknown)Exception(?=: |$)"
)
_CODE: Final = re.compile(r"^\s*(?P<here>-+>)?\s*\d+(?: (?P<code>.*))?$")


def as_python_writes(text: str) -> str:
    """The text with the tracebacks of IPython, Jupyter and Databricks in Python's own form; others stay as they are."""
    begin = _BEGIN.search(text)
    if begin is None:
        return text
    return text[: begin.start()] + "\n".join(_lines(text[begin.start() :]))


def _lines(text: str) -> Iterator[str]:
    within = False
    """Whether the line belongs to a traceback, above its message."""
    for line in _BEGIN.sub(TRACEBACK, text).split("\n"):
        place = _CELL.match(line) or _FILE.match(line) if within else None
        code = _CODE.match(line) if within else None
        if line == TRACEBACK:
            within = True
            yield line
        elif place is not None:
            yield f'  File "{_file(place)}", line {place["line"]}, in {place["in"] or "<module>"}'
        elif code is not None:
            if code["here"]:
                yield f"    {(code['code'] or '').strip()}"
        elif not within or line.strip():
            ended, within = within and not line[:1].isspace(), within and line[:1].isspace()
            yield _full(line) if ended else line


def _full(line: str) -> str:
    """The line that names an exception, with the package that a notebook leaves out if pyspark shows it of the JVM."""
    return _OF_JVM.sub(r"pyspark.errors.exceptions.captured.\g<0>", line)


def _file(place: re.Match[str]) -> str:
    given = place.groupdict()
    if given.get("cell"):
        return f"<cell {given['cell']}>"
    return f"<{given['name']}>" if given.get("name") else given["file"]
