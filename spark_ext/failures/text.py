"""The evidence in a text: a log, a stack trace that somebody has pasted, a driver's traceback. Pure.

Text is the weakest evidence, since a message can imitate anything. It serves `spark-ext classify`, and failures for
which nothing else is left.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Final

from spark_ext.failures import java_text, python_text
from spark_ext.failures.evidence import MOST_EXCEPTIONS, TRACEBACK, Evidence, Raised
from spark_ext.failures.log import failed_part


def evidence_of_text(text: str, user_packages: Collection[str] = (), *, marked: bool = True) -> Evidence | None:
    """What a text tells of a failure; None: it contains no exception. Of a log, the part that `log` finds tells it."""
    plain = as_python_writes(text)
    part = failed_part(plain)
    chain = _chain(part, user_packages, marked=marked) or _chain(plain, user_packages, marked=marked)
    return Evidence(tuple(chain[:MOST_EXCEPTIONS]), text=text) if chain else None


def _chain(text: str, packages: Collection[str], *, marked: bool) -> list[Raised]:
    # What Spark reports of its JVM, after which comes everything that it knows.
    _, jvm, below = text.partition(java_text.JVM_STACK)
    if jvm and (of_jvm := java_text.exceptions(below, packages, marked=marked)):
        return list(of_jvm)
    python_at = python_text.begin_of(text)
    java = java_text.exceptions(text, packages, marked=marked)
    if java and (python_at < 0 or text.find(java[0].kind) < python_at):
        return list(java)
    if python_at >= 0:
        found: list[Raised] = []
        for raised in python_text.exceptions(text[python_at:], packages, marked=marked):
            found += [raised, *java_text.said_of_java(raised, packages, marked=marked)]
        return found
    return java_text.streamed(text, packages, marked=marked) or list(java) or _last_line(text)


def _last_line(text: str) -> list[Raised]:
    """An exception that only a line of its own names: `ValueError: no such city`."""
    for line in reversed(text.splitlines()):
        raised = python_text.headed(line)
        if raised is not None and raised.name.endswith(("Error", "Exception", "Interrupt", "Exit")):
            return [raised]
    return []


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
    within = False  # whether the line belongs to a traceback, above its message
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
            # A notebook leaves out the package of an exception that pyspark shows of the JVM.
            yield _OF_JVM.sub(r"pyspark.errors.exceptions.captured.\g<0>", line) if ended else line


def _file(place: re.Match[str]) -> str:
    given = place.groupdict()
    if given.get("cell"):
        return f"<cell {given['cell']}>"
    return f"<{given['name']}>" if given.get("name") else given["file"]
