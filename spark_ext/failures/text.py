"""The evidence in a text: a log, a stack trace that somebody has pasted, a driver's traceback. Pure.

Text is the weakest evidence, since a message can imitate anything. It serves `spark-ext classify`, and failures for
which nothing else is left.
"""

from __future__ import annotations

from collections.abc import Collection

from spark_ext.failures import java_text, python_text
from spark_ext.failures.evidence import MOST_EXCEPTIONS, Evidence, Raised
from spark_ext.failures.log import failed_part
from spark_ext.failures.notebook import as_python_writes


def evidence_of_text(text: str, user_packages: Collection[str] = (), *, marked: bool = True) -> Evidence | None:
    """What a text tells of a failure; None: it contains no exception.

    Args:
        text: a stack trace of Java or Python, perhaps among other lines; of a log, the part that `log` finds.
    """
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
