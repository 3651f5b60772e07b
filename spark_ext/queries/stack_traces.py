"""Stack traces as Spark returns them: which parts Python wrote, which Java, and the line that says most. Pure.

A failure's text mixes Spark's own words with those of a user's exception. Nothing that Python wrote may be taken for
Spark's, or a message such as "No space left on device" would decide what is done about it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_TRACEBACK = "Traceback (most recent call last):"
_JAVA_FRAME = re.compile(r"\s*at [\w.$/<>@-]+\(")
_PYTHON_FRAME = re.compile(r'\s*File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<function>.+))?')
_LIBRARY = re.compile(r"/(site|dist)-packages/|/lib/python3[^/]*/|/(pyspark|spark_ext)/|pyspark\.zip/|^<frozen ")
_ERROR_NAME = re.compile(r"[A-Za-z_][\w.]*")
_STREAM_FAILED = re.compile(r"^\[STREAM_FAILED\] Query \[[^\]]*\] terminated with exception: |( SQLSTATE: \w{5})+$")


@dataclass(frozen=True)
class PythonError:
    """What a Python worker raised."""

    message: str
    """Its class and message, one line: `ZeroDivisionError: division by zero`."""
    place: str
    """The user's own line that was running: `flights.py, line 12, in half`; "" if only libraries were."""


def python_error(text: str) -> PythonError | None:
    """The last Python error in a stack; None if there is none."""
    lines = text.splitlines()
    begins = [number for number, line in enumerate(lines) if _TRACEBACK in line]
    if not begins:
        return None
    place, message = "", ""
    for line in lines[begins[-1] + 1 :]:
        frame = _PYTHON_FRAME.match(line)
        if frame is not None:
            if not _LIBRARY.search(frame["file"]):
                place = f"{frame['file']}, line {frame['line']}" + (
                    f", in {frame['function']}" if frame["function"] else ""
                )
        elif line[:1].strip():
            message = line.strip()
            break
    return PythonError(message, place) if message else None


def outside_python(text: str) -> list[str]:
    """The lines that Java wrote, without frames. Python's begin with its traceback and end with a frame of Java's."""
    found: list[str] = []
    in_python = False
    for line in text.splitlines():
        if _JAVA_FRAME.match(line):
            in_python = False
            continue
        before, traceback, _ = line.partition(_TRACEBACK)
        if not in_python and before.strip():
            found.append(before.strip())
        in_python = in_python or bool(traceback)
    return found


def telling_line(text: str) -> str:
    """The most telling line of a Java and Python stack: the user's line and the Python error, else the first line."""
    python = python_error(text)
    if python is not None:
        return f"{python.place}: {python.message}" if python.place else python.message
    # py4j puts ": " before the Java error's name.
    lines = [line.strip().removeprefix(": ") for line in text.splitlines() if line.strip()]
    if lines and lines[0].startswith("[STREAM_FAILED]"):
        return _STREAM_FAILED.sub("", lines[0])
    for line in reversed(lines):
        name, separator, _ = line.partition(": ")
        if separator and _ERROR_NAME.fullmatch(name) and name.endswith(("Error", "Exception")):
            return line
    return lines[0] if lines else "the query failed without a message"
