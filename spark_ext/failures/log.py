"""The part of a log that tells of the failure: the stack trace of what ended the query, among many others. Pure.

A log has a trace for each attempt of a task, for what was only a warning, and for what failed at the shutdown after it.
The one to judge is the last that Spark logs of a query, or that ended the script.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from spark_ext.failures.evidence import LOST_TASK, TRACEBACK
from spark_ext.failures.java_text import begins_trace, is_frame

_LEVELS: Final = "TRACE|DEBUG|INFO|WARN|WARNING|ERROR|FATAL|CRITICAL"
_CONTAINER: Final = re.compile(  # what whatever runs a driver writes before each of its lines
    r"^(?:[\w./-]+ +\| "  # Docker Compose
    r"|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\S* (?:stdout|stderr) [FP] "  # Kubernetes
    rf"|\d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\d\S*Z (?!(?:{_LEVELS})\b)"  # kubectl logs --timestamps
    rf"|\[\d{{4}}-\d\d-\d\d[^\]]*\] \{{[^}}]*\}} (?:{_LEVELS}) - )"  # Airflow
)

_RECORD: Final = re.compile(
    r"^(?:\[?(?:\d\d/\d\d/\d\d|\d{4}[-/]\d\d[-/]\d\d)[ T]\d\d:\d\d:\d\d[^\n]{0,90}?\b"
    rf"(?P<level>{_LEVELS})\b[^\n]{{0,120}}?(?::| -|\]) "
    rf"|(?P<plain>{_LEVELS}):[\w.]+:)",
    re.MULTILINE,
)  # the beginning of a record of Log4j, Logback or Python's `logging`, as they are usually set up

_ENDED: Final = re.compile(r"terminated with (?:error|exception)|StreamingQueryException|\[STREAM_FAILED\]")
_LINKS: Final = ("Caused by: ", "Suppressed: ")
_PYTHON: Final = re.compile(r"(?:[A-Z]\w+ +)?Traceback \(most recent call last\):?$")  # also one of a notebook
_ERRORS: Final = frozenset({"ERROR", "FATAL", "CRITICAL"})


def failed_part(text: str) -> str:
    """The part of a log, or of what somebody has pasted of one, that is about the failure; perhaps all of it."""
    best, rank = text, -1
    for level, part in _parts(_without_container(text)):
        importance = _importance(level, part)
        if importance >= rank and importance > 0:
            best, rank = part, importance
    return best


def _importance(level: str, part: str) -> int:
    """0: it has no trace. Otherwise the higher, the more likely it tells what has ended the query."""
    if TRACEBACK not in part and not any(is_frame(line) for line in part.split("\n")):
        return 3 if level in _ERRORS and _ENDED.search(part) else 0
    if _ENDED.search(part):
        return 4
    return 2 if level in _ERRORS or f"\n{TRACEBACK}" in f"\n{part}" else 1


def _parts(text: str) -> Iterator[tuple[str, str]]:
    """The level and text of each record with a trace of its own."""
    begins = [*_RECORD.finditer(text)]
    if not begins or begins[0].start() > 0:
        yield from (("", part) for part in _traces(text[: begins[0].start()] if begins else text))
    for number, match in enumerate(begins):
        said = text[match.end() : begins[number + 1].start() if number + 1 < len(begins) else len(text)]
        lost = LOST_TASK.match(said)
        for part in _traces(said[lost.end() :] if lost is not None else said):
            yield match["level"] or match["plain"], part


def _traces(text: str) -> Iterator[str]:
    """The text, cut where a trace begins that nothing links to the trace of Java before it."""
    lines = text.split("\n")
    begin, framed = 0, False
    for number, line in enumerate(lines):
        if is_frame(line):
            framed = True
        elif line.lstrip().startswith(_LINKS):
            framed = False  # what follows is a message, whatever it looks like
        elif framed and (begins_trace(line) or _PYTHON.match(line)):
            yield "\n".join(lines[begin:number])
            begin, framed = number, False
    yield "\n".join(lines[begin:])


def _without_container(text: str) -> str:
    lines = text.split("\n")
    filled = [line for line in lines if line.strip()]
    if not filled or sum(_CONTAINER.match(line) is not None for line in filled) < 0.9 * len(filled):
        return text
    return "\n".join(_CONTAINER.sub("", line, count=1) for line in lines)
