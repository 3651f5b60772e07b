"""Java's stack traces as text, read into exceptions. Pure.

For logs and for what an executor reports of an exception that the driver cannot read. Text can be imitated: a message
with a line break may look like a further exception. Where the JVM can be asked, `spark.backend.failures` is used.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Final

from spark_ext.failures import python_text, record
from spark_ext.failures.evidence import LOST_TASK, TRACEBACK, Frame, Link, Raised
from spark_ext.failures.owners import owner_of_class

_FRAME: Final = re.compile(r"\s*at (?:[\w.@-]+/+)*(?P<function>[\w.$<>\u00a0-\uffff-]+)\((?P<where>[^()]*)\)\s*$")
_HIDDEN_CLASS: Final = re.compile(r"/0x[0-9a-f]+(?=\.)")  # behind the name of a lambda's class
_MORE: Final = re.compile(r"\s*\.\.\. \d+ (?:more|common frames omitted)")
_HEAD: Final = re.compile(
    r"^(?P<indent>\s*)(?P<link>Caused by: |Suppressed: |Exception in thread \"[^\"]*\" |: )?"
    r"(?P<kind>(?:[a-z_][\w]*\.)+[A-Z]\w*(?:\$\w+)*)(?:: (?P<message>.*))?$"
)
_CONDITION: Final = re.compile(r"\[(?P<condition>[A-Z][A-Z0-9_]+(?:\.[A-Z0-9_]+)*)\] ")
_SQLSTATE: Final = re.compile(r"SQLSTATE: (?P<state>[0-9A-Z]{5})")
_ENDS_WITH_WRAPPERS: Final = re.compile(r"(?:\s*SQLSTATE: (?:3[89]000|XXKST))+\s*$")
"""What Spark appends to the message of a query, or of a function, that has failed."""
_ENDS_WITH_STATE: Final = re.compile(r"(?:\s*SQLSTATE: [0-9A-Z]{5})+\s*$")


def without_frames(stack: str) -> tuple[str, int]:
    """A stack without the frames of Java, and how many these are."""
    lines = stack.split("\n")
    left = [line for line in lines if not (_FRAME.fullmatch(line) or _MORE.fullmatch(line))]
    return "\n".join(left), len(lines) - len(left)


def exceptions(text: str, user_packages: Collection[str] = (), *, marked: bool = True) -> tuple[Raised, ...]:
    """The chain of exceptions in a stack trace, outermost first; empty without one."""
    found: list[Raised] = []
    head: re.Match[str] | None = None
    message: list[str] = []
    frames: list[Frame] = []

    def take() -> None:
        if head is not None:
            found.extend(
                _raised(head, "\n".join(message), tuple(frames), first=not found, packages=user_packages, marked=marked)
            )

    for line in text.splitlines():
        if (read := frame(line) if line.lstrip().startswith("at ") else None) is not None:
            frames.append(read)
        elif _MORE.match(line):
            continue
        elif (begin := _HEAD.match(line)) and (head is None or (frames and begin["link"])):
            # Until its frames begin, every line belongs to the message.
            take()
            head, message, frames = begin, [begin["message"] or ""], []
        elif head is not None and not frames:
            message.append(line)
        elif begins_trace(line):
            break
    take()
    return tuple(found)


def frame(text: str, is_users: Callable[[str], bool] = lambda name: True) -> Frame | None:
    """A frame from its text, `at package.Class.method(File.java:12)` with or without `at`; None if it is not one."""
    plain = _HIDDEN_CLASS.sub("", text)
    match = _FRAME.match(plain if plain.lstrip().startswith("at ") else f"at {plain}")
    if match is None:
        return None
    file, _, line = match["where"].partition(":")
    name = match["function"]
    owner = owner_of_class(name.rpartition(".")[0], is_users)
    return Frame(owner, file, int(line) if line.isdigit() else 0, name)


def is_frame(line: str) -> bool:
    """Whether a line of a stack trace is a frame."""
    return line.lstrip().startswith("at ") and frame(line) is not None


def begins_trace(line: str) -> bool:
    """Whether a line begins a stack trace that nothing links to the one before it."""
    begin = _HEAD.match(line)
    link = begin["link"] if begin is not None else None
    return begin is not None and not begin["indent"] and (not link or link.startswith("Exception in thread"))


def _raised(
    head: re.Match[str],
    message: str,
    frames: tuple[Frame, ...],
    *,
    first: bool,
    packages: Collection[str],
    marked: bool,
) -> list[Raised]:
    link = Link.OUTERMOST if first else Link.SUPPRESSED if head["link"] == "Suppressed: " else Link.CAUSE
    own = Raised(
        head["kind"], message.strip(), link, frames, condition=condition_of(message), sqlstate=state_in(message)
    )
    return [own, *reported(own, packages, marked=marked)]


def condition_of(message: str) -> str:
    """Spark's error condition at the beginning of a message, or ""."""
    match = _CONDITION.match(message.lstrip())
    return match["condition"] if match is not None else ""


def state_in(message: str) -> str:
    """The SQLSTATE that Spark names first in a message that begins with a condition, or ""."""
    match = _SQLSTATE.search(message) if condition_of(message) else None
    return match["state"] if match is not None else ""


def without_state(message: str) -> str:
    """A message without the SQLSTATEs that Spark appends."""
    return _ENDS_WITH_STATE.sub("", message)


_PYTHON_EXCEPTION: Final = "org.apache.spark.api.python.PythonException"
_CALLBACK: Final = "py4j.Py4JException"  # a function of the driver's Python that the JVM has called has raised


def reports_python(raised: Raised) -> bool:
    """Whether an exception stands for one of Python, whatever caused it in Java."""
    return raised.kind in (_PYTHON_EXCEPTION, _CALLBACK) or raised.message.startswith(python_text.CRASHED)


def reported(raised: Raised, packages: Collection[str] = (), *, marked: bool = True) -> list[Raised]:
    """What an exception says another process has raised: a Python worker's traceback, an executor's stack trace."""
    if not raised.kind.startswith(("org.apache.spark.", "py4j.")):
        return []
    # What the driver's own Python says may contain the record of a worker, which belongs to an exception further in.
    recorded = None if raised.kind == _CALLBACK else record.read(raised.message, packages)
    lost = LOST_TASK.search(raised.message)
    python_at = raised.message.find(TRACEBACK)
    if recorded is not None:
        inner = recorded
    elif lost is not None and (python_at < 0 or lost.start() < python_at):
        rest = raised.message[lost.end() :].partition("\n\nDriver stacktrace:")[0]
        inner = exceptions(rest, packages, marked=marked)
    elif (crash := python_text.crash(raised.message, packages)) is not None:
        inner = (crash,)
    elif python_at >= 0:
        # An exception of Spark's that the function has met keeps the state of its own.
        inner = python_text.exceptions(_ENDS_WITH_WRAPPERS.sub("", raised.message), packages, marked=marked)
    elif raised.kind == _PYTHON_EXCEPTION:
        # Spark has hidden the traceback.
        message = without_state(raised.message)
        alone = python_text.headed(message.partition("from the Python worker: ")[2] or message)
        inner = (alone,) if alone is not None else ()
    else:
        inner = ()
    found: list[Raised] = []
    for one in inner:
        found.append(replace(one, link=Link.REPORTED) if one.link is Link.OUTERMOST else one)
        found += said_of_java(one, packages, marked=marked)
    return found


JVM_STACK: Final = "JVM stacktrace:\n"  # behind it pyspark shows the stack trace of the JVM
_STREAM_FAILED: Final = re.compile(r"\[STREAM_FAILED\] Query \[[^\]]*\] terminated with exception: ")
_AFTER_PLAN: Final = "\n=== Streaming Query ==="


_OF_JAVA: Final = ("pyspark.errors.exceptions.captured.", "delta.exceptions.captured.", "py4j.protocol.Py4JJavaError")
"""How Python exceptions that stand for one of the JVM are named."""


def said_of_java(raised: Raised, packages: Collection[str] = (), *, marked: bool = True) -> list[Raised]:
    """What a Python exception that stands for one of the JVM says of it; empty for any other exception."""
    if not raised.kind.startswith(_OF_JAVA):
        return []
    _, jvm, below = raised.message.partition(JVM_STACK)
    rest = below if jvm else raised.message.partition("\n")[2]
    found = exceptions(rest, packages, marked=marked)
    # In a traceback, which Spark quotes, an exception of a package looks like one of Java's.
    if found and not 0 <= rest.find(TRACEBACK) < rest.find(found[0].kind):
        return [replace(one, link=Link.CAUSE) if one.link is Link.OUTERMOST else one for one in found]
    return said(_STREAM_FAILED.split(raised.message, maxsplit=1)[-1], packages, marked=marked)


def said(message: str, packages: Collection[str] = (), *, marked: bool = True) -> list[Raised]:
    """What a message of Spark's, without a stack trace, says of the exception that it stands for."""
    plain = message.partition(_AFTER_PLAN)[0]
    one = Raised(
        "org.apache.spark.SparkException",
        without_state(plain),
        Link.CAUSE,
        condition=condition_of(plain),
        sqlstate=state_in(plain),
    )
    return [one, *reported(one, packages, marked=marked)]


def streamed(text: str, packages: Collection[str] = (), *, marked: bool = True) -> list[Raised]:
    """What Spark's line about a failed query says; empty without one."""
    match = _STREAM_FAILED.search(text)
    return said(text[match.end() :], packages, marked=marked) if match is not None else []
