"""The types of incidents, the listeners and the alert rules of a job: `conf/incidents.yaml` and a file of the user's.

A type that is not declared cannot be reported by the user. One that a newer release of this package has written is
shown as any other.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from spark_ext.errors import SparkExtError, refused
from spark_ext.incidents.types import EventKind, Resolution, Severity
from spark_ext.options import Milliseconds, Options, milliseconds, several
from spark_ext.yaml_file import line_of, read_model, wrong_line

OPERATOR: Final = "incidents"  # how messages name such a file
ANY: Final = "*"  # stands for all types
OF_A_RULE: Final = "rule:"  # how fingerprints of incidents of alert rules begin
_NAME: Final = r"^[a-z][a-z0-9_]{0,63}$"
_RULE: Final = re.compile(r"availability\s+below\s+(?P<below>[0-9.]+)\s*(?P<percent>%?)\s+over\s+(?P<over>.+)")
_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


class IncidentType(BaseModel):
    """A type of incident."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=_NAME)
    severity: Severity
    description: str = Field(min_length=1)  # one sentence
    runbook: str = ""  # what to do: a page and anchor, or a URL
    window: Milliseconds = 600_000  # ms after the last one in which an equal incident is the same; 0: never
    resolved: Resolution = Resolution.EPOCH  # what resolves it
    interrupts: bool = False  # what happens until the query's next epoch has it as parent


class AlertRule(BaseModel):
    """An incident that is open while the job was available for too small a share of its time."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rule: str  # `availability below 99.9 % over 1 day`
    labels: Mapping[str, Annotated[tuple[str, ...], BeforeValidator(several)]] = Field(default_factory=dict)
    """Only downtime due to incidents with these labels counts, of each one of these values; none: all downtime."""
    type: str = "unavailability"  # of the incident
    every: Annotated[Milliseconds, Field(ge=1)] = 60_000  # how often the rule is evaluated, ms

    @model_validator(mode="after")
    def _is_a_rule(self) -> AlertRule:
        self._parts  # noqa: B018
        return self

    @property
    def _parts(self) -> tuple[float, int]:
        match = _RULE.fullmatch(self.rule.strip())
        if match is None:
            raise ValueError(f"'{self.rule}' is not a rule such as 'availability below 99.9 % over 1 day'")
        try:
            share = float(match["below"]) / (100 if match["percent"] else 1)
        except ValueError:
            raise ValueError(f"'{match['below']}' is not a number") from None
        if not 0 < share <= 1:
            raise ValueError(f"an availability of {match['below']}{match['percent']} is not above 0 and at most 1")
        window = milliseconds(match["over"])
        if not isinstance(window, int) or window <= 0:
            raise ValueError(f"'{match['over']}' is not a duration above 0")
        return share, window

    @property
    def below(self) -> float:
        """The least share of time that raises no alert, above 0 and at most 1."""
        return self._parts[0]

    @property
    def over(self) -> int:
        """The period up to now that is looked at, ms."""
        return self._parts[1]

    @property
    def name(self) -> str:
        """The rule with its labels, for messages."""
        text = " ".join(self.rule.split())
        labels = ", ".join(f"{name}={'|'.join(values)}" for name, values in sorted(self.labels.items()))
        return f"{text}, of {labels}" if labels else text

    @property
    def fingerprint(self) -> str:
        """Of its incidents: rules with another text or other labels are other rules."""
        return OF_A_RULE + hashlib.sha256(self.name.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def for_listeners(kinds: tuple[EventKind, ...]) -> tuple[EventKind, ...]:
    """The same kinds of lifecycle events; raises ValueError for one that listeners do not get."""
    if EventKind.INCIDENT in kinds:
        raise ValueError("changes of incidents are chosen by 'types'")
    return kinds


class ListenerEntry(BaseModel):
    """A listener, and which changes and events it is notified of."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    use: str = Field(min_length=1)  # `log`, `webhook`, `smtp`, `prometheus`, an entry point or `module:Class`
    types: Annotated[tuple[str, ...], BeforeValidator(several)] = (ANY,)
    severity: Severity = Severity.INFO  # the least one
    events: Annotated[tuple[EventKind, ...], BeforeValidator(several), AfterValidator(for_listeners)] = ()
    """Kinds of lifecycle events; not given: those that its class names."""
    queue: Annotated[int, Field(ge=1)] = 1_000  # how many changes may wait; further ones are dropped and counted
    timeout: Annotated[Milliseconds, Field(ge=1)] = 30_000  # how long one call may take, ms
    digest: Milliseconds = 0  # how long changes are collected for one call, ms, counted from the first
    options: Mapping[str, Any] = Field(default_factory=dict, repr=False)  # `${NAME}` is from the environment


def _none_twice(types: tuple[IncidentType, ...]) -> tuple[IncidentType, ...]:
    names = [one.name for one in types]
    twice = next((name for at, name in enumerate(names) if name in names[:at]), None)
    if twice is not None:
        raise ValueError(f"duplicate type '{twice}'")
    return types


class IncidentFile(BaseModel):
    """A whole file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    types: Annotated[tuple[IncidentType, ...], AfterValidator(_none_twice)] = ()
    listeners: tuple[ListenerEntry, ...] = ()
    alerts: tuple[AlertRule, ...] = ()


@dataclass(frozen=True)
class Registry:
    """What is declared."""

    types: Mapping[str, IncidentType]
    own: frozenset[str] = frozenset()  # names of the types that the user has declared
    listeners: tuple[ListenerEntry, ...] = ()
    alerts: tuple[AlertRule, ...] = ()
    place: str = "conf/incidents.yaml"  # the file, for messages
    lines: Mapping[int, int] = field(default_factory=dict)  # the line of each listener in it, by its index

    def of(self, name: str) -> IncidentType:
        """A type by its name; one that is not declared is a warning, and never the same as another one."""
        found = self.types.get(name)
        # Not validated: the name may be one of a later release.
        return found or IncidentType.model_construct(
            name=name, severity=Severity.WARNING, description="not declared", window=0
        )

    @property
    def listeners_id(self) -> str:
        """Equal for files with the same listeners."""
        found = [repr((one, dict(one.options))) for one in self.listeners]
        return hashlib.sha256("\0".join(found).encode("utf-8", "surrogatepass")).hexdigest()[:32]

    def refuse_unknown_failures(self, known: Collection[str]) -> None:
        """Refuse an alert on a type of failure that nothing has."""
        for rule in self.alerts:
            for name in (one for one in rule.labels.get("type", ()) if one not in known):
                do = (
                    f"use one of: {', '.join(known)}; or declare it under 'types' in the file of the setting 'failures'"
                )
                what = f"{self.place}: the alert '{rule.name}' has the unknown failure type '{name}'"
                raise refused(what, OPERATOR, do, kept="nothing was started")

    def refuse_undeclared(self, name: str, operator: str) -> None:
        """Refuse a type that the user has not declared."""
        if name in self.own:
            return
        if name in self.types:
            what, do = f"'{name}' is a type of incident that spark-ext itself reports", "declare a type of another name"
        else:
            what = f"unknown incident type '{name}'"
            do = f"declare it under 'types' in {self.place}" if self.own else "declare it in a file, and name that file"
            do += "" if self.own else " in the job's setting 'incidents'"
        known = f"; declared are: {', '.join(sorted(self.own))}" if self.own else ""
        raise refused(what, operator, do + known, kept="nothing was reported")


@lru_cache(maxsize=1)
def shipped() -> Registry:
    """What ships with the package, `conf/incidents.yaml`."""
    name = "conf/incidents.yaml"
    text = files("spark_ext.conf").joinpath("incidents.yaml").read_text(encoding="utf-8")
    found, _ = read_model(IncidentFile, text, name, OPERATOR)
    return Registry({one.name: one for one in found.types})


def load(path: str | None = None) -> Registry:
    """The registry of a job: the shipped types, and the user's file, if any."""
    if path is None:
        return shipped()
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise refused(
            f"the file of incidents {path} cannot be read: {problem}", OPERATOR, "correct the setting 'incidents'"
        ) from None
    return read_registry(text, path)


def read_registry(text: str, name: str) -> Registry:
    """The registry of a user's file."""
    found, node = read_model(IncidentFile, text, name, OPERATOR)
    types = dict(shipped().types)
    for at, one in enumerate(found.types):
        if one.name in types:
            what = f"the type '{one.name}' is one of spark-ext's own"
            raise wrong_line(name, line_of(node, ("types", at, "name")), what, OPERATOR)
        types[one.name] = one
    for at, rule in enumerate(found.alerts):
        given = types.get(rule.type)
        if given is None or given.resolved is not Resolution.REPORT:
            loc = ("alerts", at, "type" if given is not None or "type" in rule.model_fields_set else "rule")
            what = f"the alert needs a type with 'resolved: report', and '{rule.type}' is none"
            raise wrong_line(name, line_of(node, loc), what, OPERATOR)
    for at, entry in enumerate(found.listeners):
        for unknown in (one for one in entry.types if one != ANY and one not in types):
            what = f"unknown type '{unknown}'; declared types: {', '.join(sorted(types))}"
            raise wrong_line(name, line_of(node, ("listeners", at, "types")), what, OPERATOR)
    lines = {at: line_of(node, ("listeners", at)) for at in range(len(found.listeners))}
    listeners = []
    for at, entry in enumerate(found.listeners):
        options = _filled(entry.options, name, node, at)
        listeners.append(entry.model_copy(update={"options": options}))
    return Registry(types, frozenset(one.name for one in found.types), tuple(listeners), found.alerts, name, lines)


def _filled(options: Mapping[str, Any], name: str, node: Any, at: int) -> dict[str, Any]:
    """Options with what they take from the environment. Secrets among them are masked from now on."""
    filled = {}
    for key, value in options.items():
        match = _VARIABLE.fullmatch(value) if isinstance(value, str) else None
        if match is not None and match[1] not in os.environ:
            what = f"option '{key}': the environment has no variable {match[1]}"
            raise wrong_line(name, line_of(node, ("listeners", at, "options", key)), what, OPERATOR)
        filled[key] = value if match is None else os.environ[match[1]]
    Options.keep_secret(filled)
    return filled


def at_line(registry: Registry, index: int, problem: Exception) -> SparkExtError:
    """The refusal of a listener, with the line that names it."""
    what = problem.what if isinstance(problem, SparkExtError) else f"{type(problem).__name__}: {problem}"
    wrong = wrong_line(registry.place, registry.lines.get(index, 1), what, OPERATOR)
    if not isinstance(problem, SparkExtError):
        return wrong
    return type(problem)(wrong.what, operator=OPERATOR, kept=wrong.kept, do=problem.do or wrong.do)


def accepted(entry: ListenerEntry, type_: str, severity: Severity) -> bool:
    """Whether a listener is notified of an incident."""
    return severity.rank >= entry.severity.rank and not {ANY, type_}.isdisjoint(entry.types)
