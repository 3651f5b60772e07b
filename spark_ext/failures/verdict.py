"""What is said of a failure: its type, whose it is, the guilty line, and how that was found. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from spark_ext.failures.evidence import UNRELATED, USER_RAISED, Evidence, Frame, Link, Owner, Raised
from spark_ext.failures.labels import FailureType, Origin
from spark_ext.failures.owners import is_compiled, owner_of_class
from spark_ext.failures.rules import FailureRules, Rule
from spark_ext.masking import mask


@dataclass(frozen=True)
class Verdict:
    """What is said of a failure."""

    type: FailureType
    """Of a type of the user's own, its base: the label `type` has the name."""
    origin: Origin
    rule: str
    """Name of the rule that decided; "" if none matched."""
    raised: Raised
    """The exception that the rule matched."""
    place: str = ""
    """The user's line that ran, or that built the expression: `flights.py, line 12, in half`, or ""."""
    places: tuple[str, ...] = ()
    """The user's line of each exception that led to the failure, innermost first; `place` is the first of them."""
    subject: str = ""
    """What could not be serialized; "" for other types, and if nothing names it."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """All labels: `type`, `origin`, and those of rules and plugins; `base` of a type of the user's own."""

    @property
    def summary(self) -> str:
        """One line: place, class and message."""
        lines = [line.strip() for line in self.raised.message.splitlines() if line.strip()]
        name = self.raised.kind.removeprefix("builtins.")
        said = f"{name}: {lines[0]}" if lines else name
        return mask(f"{self.place}: {said}" if self.place else said)

    def to_json(self) -> dict[str, Any]:
        """For the ledger and for programs."""
        return {
            "labels": dict(self.labels),
            "place": mask(self.place),
            "subject": mask(self.subject),
            "rule": self.rule,
            "summary": self.summary,
        }


def judged(evidence: Evidence, rules: FailureRules) -> Verdict:
    """The verdict of the rules on a failure: the last resort is USER_CODE for code of the user's, SYSTEM otherwise."""
    origin = origin_of(evidence)
    rule, raised = _first(evidence, origin, rules)
    if rule is None:
        kind = FailureType.USER_CODE if origin in (Origin.USER, Origin.DEPENDENCY) else FailureType.SYSTEM
    else:
        kind = rules.base_of(rule.type)
    if kind is FailureType.CANCELED and not raised.python:
        # Spark ends the job, whatever library waits for it.
        origin = {Origin.LIBRARY: Origin.SPARK, Origin.DEPENDENCY: Origin.USER}.get(origin, origin)
    if raised.code and origin in (Origin.USER, Origin.DEPENDENCY) and not raised.by_user:
        # Made anew from its text, an error of this package has lost its frames; or it stands for one of a library's.
        origin = Origin.LIBRARY
    if origin not in (Origin.USER, Origin.DEPENDENCY) and _users_result(kind, evidence):
        origin = Origin.USER
    places = tuple(places_of(evidence))
    labels = {"type": kind.value, "origin": origin.value}
    if rule is not None:
        own = {"base": kind.value} if rule.type != kind.value else {}
        labels |= {"type": rule.type, **own, **rule.labels}
    return Verdict(
        kind,
        origin,
        "" if rule is None else rule.name,
        raised,
        next(iter(places), ""),
        places,
        subject_of(evidence) if kind is FailureType.SERIALIZATION else "",
        labels,
    )


def _first(evidence: Evidence, origin: Origin, rules: FailureRules) -> tuple[Rule | None, Raised]:
    for rule in rules.rules:
        raised = rule.matches(evidence, origin)
        if raised is not None:
            return rule, raised
    return None, evidence.root


def _is_python(frame: Frame) -> bool:
    return frame.file.endswith((".py", ".pyx", ".pxi", ".pyw")) or frame.file.startswith("<")


def origin_of(evidence: Evidence) -> Origin:
    """Whose code failed: the innermost frame that is not of a standard library tells.

    Spark's own frames, called by code of the user's, are the user's doing; so is an expression that Spark names.
    """
    frames = list(evidence.frames())
    python = [frame for frame in frames if _is_python(frame)]
    by_user = any(frame.owner is Owner.USER for frame in frames)
    if any(frame.owner in (Owner.USER, Owner.LIBRARY, Owner.SPARK_EXT) for frame in python):
        # Java's frames below Python's are what Python called; those above are Spark's, which called Python.
        below = [*_without_frames(evidence), *_called_by_python(evidence)]
        found = _origin([*below, *python], by_user=by_user)
        return found if found is not Origin.SPARK else _origin(python, by_user=by_user)
    if not by_user and any(raised.context or raised.condition == USER_RAISED for raised in evidence.related):
        return Origin.USER
    return _origin(evidence.root.frames or tuple(frames), by_user=by_user)


def _origin(frames: Iterable[Frame], *, by_user: bool) -> Origin:
    for frame in frames:
        if frame.owner is Owner.USER:
            return Origin.USER
        if frame.owner is Owner.SPARK_EXT:
            return Origin.LIBRARY
        if frame.owner is Owner.LIBRARY:
            return Origin.DEPENDENCY if by_user else Origin.LIBRARY
        if frame.owner is Owner.SPARK and by_user:
            return Origin.USER
    return Origin.SPARK


def _called_by_python(evidence: Evidence) -> tuple[Frame, ...]:
    """The frames of the root exception, if it is Java's and a Python exception stands for it."""
    python = False
    for raised in evidence.chain:
        python = python or raised.python
    last = evidence.root
    if not python or last.python or last.code:
        return ()
    if last.frames:
        return last.frames
    name = "org.apache.spark.sql.delta." if last.condition.startswith("DELTA_") else last.kind
    return (Frame(owner_of_class(name), "", 0, name),)


def _without_frames(evidence: Evidence) -> tuple[Frame, ...]:
    """The frame that is missing below a line of the user's, if a compiled package has raised what that line called."""
    last = evidence.root
    here = next((frame for frame in last.frames if frame.owner is not Owner.STANDARD), None)
    if here is None or here.owner is not Owner.USER or last.by_user or not is_compiled(last.kind):
        return ()
    return (Frame(Owner.LIBRARY, "", 0, last.kind),)


_OBJECTS: Final = re.compile(r"^\s*- (?:object|field) \(class:? (?P<name>[\w.$]+)", re.MULTILINE)


_CONVERTERS: Final = re.compile(r"(?:^|[/\\])(?:pyarrow|pandas|numpy)[/\\]")  # pyspark converts rows with them


def _users_result(kind: FailureType, evidence: Evidence) -> bool:
    """Whether what failed is what a function of the user's has returned or holds: it is not on the stack any more."""
    if kind is FailureType.USER_CODE:
        return True
    if kind in (FailureType.SOURCE, FailureType.SINK):
        # What a data source in Python has returned is examined by pyspark. The sources of packages are tested.
        converted = (frame for frame in evidence.root.frames if not _CONVERTERS.search(frame.file))
        return evidence.root.python and {frame.owner for frame in converted} <= {Owner.SPARK, Owner.STANDARD}
    if kind is not FailureType.SERIALIZATION:
        return False
    in_worker = any(raised.python or raised.kind.startswith("net.razorvine.") for raised in evidence.chain)
    return in_worker or any(owner_of_class(name) is Owner.USER for name in _OBJECTS.findall(evidence.root.message))


_CALLED_FROM: Final = re.compile(
    r"was called from\s+(?P<file>\S[^\n]*?\.py|<[^>\n]+>|[^\n]*ipykernel[^\n]*):(?P<line>\d+)"
)


def places_of(evidence: Evidence) -> Iterator[str]:
    """The user's lines: the innermost frame of the user's of each exception, else where an expression was built."""
    found = False
    for at in reversed(range(len(evidence.chain))):
        raised = evidence.chain[at]
        own = next((frame for frame in raised.frames if frame.owner is Owner.USER), None)
        if own is not None and (raised.link not in UNRELATED or _reports(evidence.chain[at - 1], raised)):
            found = True
            yield own.place
    for raised in reversed(evidence.chain) if not found else ():
        called = _CALLED_FROM.search(raised.context)
        if called is not None:
            yield f"{called['file']}, line {called['line']}"


def _reports(outer: Raised, inner: Raised) -> bool:
    """Whether pyspark raised one exception because code of the user's had raised the other: it names no cause."""
    return inner.link is Link.CONTEXT and bool(outer.frames) and outer.frames[0].owner is Owner.SPARK


_SUBJECTS: Final = (
    re.compile(r"object not serializable \(class: (?P<subject>[\w.$]+)"),
    re.compile(r"construction of ClassDict \(for (?P<subject>[\w.]+)"),
    re.compile(r"(?P<subject>\w+)\.__(?:init|new|setstate|reduce|getstate)__\(\)"),
    re.compile(r"attempting to reference (?P<subject>\w+) (?:from|inside)"),
    re.compile(r"Cannot pickle (?P<subject>files|\w+ objects?)"),
    re.compile(r"cannot (?:pickle|serialize) '?(?P<subject>[\w. ]+?)'? objects?"),
    re.compile(r"[Cc]an't (?:pickle|get local object|get attribute) (?P<subject>(?:<[^>]+>|'[^']+'|[^:\s]+))"),
    re.compile(r"- object \(class (?P<subject>[\w.$]+)"),
    re.compile(r"^(?P<subject>(?:\w+\.)+[\w$]+)$", re.MULTILINE),
    re.compile(r"Class is not registered: (?P<subject>[\w.$]+)"),
)


_WEAK: Final = re.compile(r"^weakref\.(?:ReferenceType|(?:Callable)?ProxyType)$")
"""Classes whose objects functions of `weakref` make; nobody calls them by name."""
_NO_NAME: Final = re.compile(r"^(?:jdk\.internal|sun|com\.sun)\.(?:\w+\.)*(?=[A-Z])")  # Java's own packages


def subject_of(evidence: Evidence) -> str:
    """What could not be serialized; "" if no exception names it."""
    for raised in reversed(evidence.chain):
        for pattern in _SUBJECTS:
            match = pattern.search(raised.message)
            if match is not None:
                return _NO_NAME.sub("", _WEAK.sub("weakref", match["subject"].strip("'")))
    return ""
