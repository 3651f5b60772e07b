"""The exceptions of a failure, read from the driver's JVM and from this process: class, condition and frames of each.

The JVM keeps each exception of a chain apart, so that a user's message is never taken for an exception or a frame.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, Final

from spark_ext.errors import refused
from spark_ext.failures import java_text, python_error, record
from spark_ext.failures.classifier import load
from spark_ext.failures.evidence import MOST_EXCEPTIONS, Evidence, Frame, Link, Owner, Raised
from spark_ext.failures.labels import Response
from spark_ext.failures.owners import owner_of_class
from spark_ext.failures.text import evidence_of_text
from spark_ext.failures.verdict import Verdict

_MOST_FRAMES_OF_JAVA: Final = 40
_ROOTS: Final = ("java.lang.Throwable", "java.lang.Object")


def evidence_of(failure: BaseException, user_packages: Collection[str] = ()) -> Evidence:
    """What an exception of this process tells, with the exceptions of the JVM that it stands for.

    If the JVM no longer answers, it is what Python has. For `user_packages` see `owners.owner_of_file`.
    """
    try:
        chain = _chain(failure, user_packages)
    except Exception:  # the JVM has gone, or is going
        chain = python_error.exceptions(failure, user_packages)
    return Evidence(tuple(chain[:MOST_EXCEPTIONS]), text=_text(failure))


def first_line(problem: Exception) -> str:
    """What a failure of Spark says, without its stack traces."""
    from py4j.protocol import Py4JJavaError

    if not isinstance(problem, Py4JJavaError):
        return str(problem).partition("\n")[0]
    cause = problem.java_exception
    return str(cause.getMessage() or cause.getClass().getName()).partition("\n")[0]


def _chain(failure: BaseException, user_packages: Collection[str]) -> list[Raised]:
    chain = python_error.exceptions(failure, user_packages, lambda error: _below(error, user_packages))
    if (_throwable(failure) is not None or _of_server(failure)) and not _called_by_user(failure, chain[0]):
        return [replace(chain[1], link=Link.OUTERMOST), *chain[2:]]
    return chain


def _called_by_user(failure: BaseException, outermost: Raised) -> bool:
    """Whether a line of the user's made the call that failed. What a query raises comes from a thread of its own."""
    owners = {frame.owner for frame in outermost.frames}
    return (
        "StreamingQueryException" not in type(failure).__name__
        and Owner.USER in owners
        and Owner.SPARK_EXT not in owners
    )


def _below(error: BaseException, packages: Collection[str]) -> list[Raised]:
    throwable = _throwable(error)
    if throwable is None:
        return list(java_text.exceptions(_of_server(error), packages))
    first, *rest = _java_chain(throwable, packages)
    return [replace(first, link=Link.CAUSE), *rest]


def _text(failure: BaseException) -> str:
    text, stack = python_error.said_by(failure), getattr(failure, "_stackTrace", None)
    whole = f"{text}\n\n{stack}" if isinstance(stack, str) and stack and stack not in text else text
    return record.without(whole)


def _throwable(error: BaseException) -> Any:
    """The JVM's exception that pyspark's stands for; None if it is not one."""
    found = getattr(error, "_origin", None) or getattr(error, "java_exception", None)
    return found if hasattr(found, "getStackTrace") else None


def _of_server(error: BaseException) -> str:
    """The stack that a server of Spark Connect has sent with an exception; "" if it is not one of these."""
    found = getattr(error, "_stacktrace", None)
    return found if isinstance(found, str) else ""


def _java_chain(throwable: Any, packages: Collection[str]) -> list[Raised]:
    found: list[Raised] = []
    link = Link.OUTERMOST
    reader = _Reader()
    while throwable is not None and len(found) < MOST_EXCEPTIONS:
        found.append(reader.raised(throwable, link))
        for other in list(throwable.getSuppressed())[:2]:
            found.append(reader.raised(other, Link.SUPPRESSED))
        throwable, link = throwable.getCause(), Link.CAUSE
    return _with_reports(found, packages)


def _with_reports(chain: list[Raised], packages: Collection[str]) -> list[Raised]:
    """The chain with what its exceptions report of other processes, each once: by the innermost that reports it."""
    found: list[Raised] = []
    for number, raised in enumerate(chain):
        found.append(raised)
        last = all(later.link is Link.SUPPRESSED for later in chain[number + 1 :])
        if last or java_text.reports_python(raised):
            found += java_text.reported(raised, packages)
    return [replace(one, message=record.without(one.message)) for one in found]


class _Reader:
    def __init__(self) -> None:
        from pyspark import SparkContext

        self._gateway: Any = SparkContext._gateway
        self._jvm: Any = SparkContext._jvm
        self._owners: dict[str, bool] = {}
        self._jars = self._users_jars(SparkContext._active_spark_context)

    def raised(self, throwable: Any, link: Link) -> Raised:
        """One exception, without its causes."""
        message = str(throwable.getMessage() or "")
        condition, state, context = self._of_spark(throwable)
        trace = throwable.getStackTrace()
        frames = [self._frame(trace[at]) for at in range(min(len(trace), _MOST_FRAMES_OF_JAVA))]
        bases: tuple[str, ...] = ()
        with contextlib.suppress(Exception):
            bases = self._bases(throwable.getClass())
        return Raised(
            str(throwable.getClass().getName()),
            java_text.without_state(message) if condition else message,
            link,
            tuple(frames),
            bases,
            condition,
            state,
            context=context,
        )

    def _bases(self, kind: Any) -> tuple[str, ...]:
        found = []
        while (kind := kind.getSuperclass()) is not None and (name := str(kind.getName())) not in _ROOTS:
            found.append(name)
        return tuple(name for name in found if name not in ("java.lang.Exception", "java.lang.RuntimeException"))

    def _of_spark(self, throwable: Any) -> tuple[str, str, str]:
        from py4j.java_gateway import is_instance_of

        if is_instance_of(self._gateway, throwable, "java.sql.SQLException"):
            return "", str(throwable.getSQLState() or ""), ""
        if not is_instance_of(self._gateway, throwable, "org.apache.spark.SparkThrowable"):
            return "", "", ""
        condition = state = context = ""
        with contextlib.suppress(Exception):
            condition, state = self._conditions(throwable)
        with contextlib.suppress(Exception):
            contexts = list(throwable.getQueryContext())
            context = "; ".join(str(one.summary()).strip() for one in contexts[:2])
        return str(condition or ""), str(state or ""), context

    def _conditions(self, throwable: Any) -> tuple[Any, Any]:
        from py4j.java_gateway import JavaClass

        utils = self._jvm.PythonErrorUtils
        if isinstance(utils, JavaClass):
            return utils.getCondition(throwable), utils.getSqlState(throwable)
        return throwable.getCondition(), throwable.getSqlState()  # 4.0

    def _frame(self, element: Any) -> Frame:
        # One call brings class, method, file and line; a call for each would take four times as long.
        text = str(element.toString())
        read = java_text.frame(text, self._is_users)
        return read if read is not None else Frame(owner_of_class(text, self._is_users), "", 0, text)

    def _is_users(self, name: str) -> bool:
        """Whether a class comes from a jar that was added to the session."""
        if name not in self._owners:
            jar = self._jar_of(name)
            # What this thread's loader does not find was added to a session of its own.
            self._owners[name] = jar in self._jars if jar else bool(self._jars)
        return self._owners[name]

    def _jar_of(self, name: str) -> str:
        try:
            loader = self._jvm.java.lang.Thread.currentThread().getContextClassLoader()
            found = self._jvm.java.lang.Class.forName(name, False, loader)
            return str(found.getProtectionDomain().getCodeSource().getLocation().getPath()).rpartition("/")[2]
        except Exception:  # a class that this thread's loader does not find
            return ""

    def _users_jars(self, context: Any) -> frozenset[str]:
        if context is None:
            return frozenset()
        with contextlib.suppress(Exception):
            jars = context._jsc.sc().listJars()
            return frozenset(str(jars.apply(at)).rpartition("/")[2] for at in range(jars.size()))
        return frozenset()


@dataclass(frozen=True)
class Explanation:
    """What is said of a failure."""

    verdict: Verdict  # its type, whose it is, the guilty line
    decision: Response  # what a job does about it
    evidence: Evidence  # the exceptions that led to it


def classify(failure: BaseException | str, *, rules: str | None = None) -> Explanation:
    """Say of a failure what kind it is, whose it is, and what a job would do about it.

    An exception that pyspark has raised is read from the JVM, which has to be there. Text is the weakest evidence: a
    message can imitate anything.

    Args:
        failure: an exception; or a stack trace as text, of Java or Python, perhaps among other lines.
    """
    classifier = load(rules)
    if isinstance(failure, str):
        evidence = evidence_of_text(failure, classifier.user_packages, marked=False)
        if evidence is None:
            raise refused(
                "the text has no exception",
                "classify",
                "give it a stack trace of Java or Python, with the line that names the exception",
                kept="nothing was changed",
            )
    else:
        evidence = getattr(failure, "evidence", None) or evidence_of(failure, classifier.user_packages)
    verdict = classifier.classify(evidence)
    return Explanation(verdict, classifier.decision(verdict.labels).do, evidence)
