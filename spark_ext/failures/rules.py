"""The rules and decisions of `conf/failures.yaml`: read, checked, and refused with the line that is wrong. Pure.

A rule names what it expects of one exception of the failure and of the failure as a whole; the first rule that matches
decides the type. A pattern for messages is bound to the classes or conditions that say them: text alone decides
nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from fnmatch import translate
from functools import cache, cached_property, lru_cache
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from spark_ext.failures.evidence import Evidence, Frame, Owner, Raised
from spark_ext.failures.labels import TYPE_NAME, UNKNOWN, FailureType, Origin, Response
from spark_ext.options import Milliseconds, several
from spark_ext.yaml_file import line_of, read_model, wrong_line

Several = Annotated[tuple[str, ...], BeforeValidator(several)]  # one text or a list of them
Numbers = Annotated[tuple[int, ...], BeforeValidator(several)]
MOST_TYPES: Final = 50  # types of the user's own: they are values of a metric's label
BUILT_IN: Final = tuple(kind.value for kind in FailureType)


def _own(name: str) -> str:
    if name in BUILT_IN or name == UNKNOWN:
        raise ValueError(f"'{name}' is one of spark-ext's own names")
    if TYPE_NAME.fullmatch(name) is None:
        raise ValueError(f"'{name}' is not a name of up to 64 capital letters, digits and underscores")
    return name


def _base(name: Any) -> Any:
    if name not in BUILT_IN:
        raise ValueError(f"'{name}' cannot be a base, which is one of: {', '.join(BUILT_IN)}")
    return name


class OwnType(BaseModel):
    """A type of failure of the user's own: a special case of one of spark-ext's."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Annotated[str, AfterValidator(_own)]
    base: Annotated[FailureType, BeforeValidator(_base)]  # decides what is done, unless a decision names the type


class Rule(BaseModel):
    """What a failure has to look like, and its labels."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str  # shown in verdicts
    type: str  # one of spark-ext's or of the user's own
    labels: Mapping[str, str] = Field(default_factory=dict)  # further labels

    exception: Several = ()  # classes with package, or patterns: `*.OperationalError`; derived classes match too
    condition: Several = ()  # conditions of Spark's or patterns: `STATE_STORE_*`
    sqlstate: Several = ()  # how the SQLSTATE begins: `22`
    code: Several = ()  # codes of errors of this package
    errno: Numbers = ()  # the operating system's numbers
    message: str = ""  # regular expression for the exception's own words; needs exception, condition or code
    at: Several = ()  # patterns for the innermost frame of the exception that is not of a standard library
    beside: Several = ()  # patterns for one of the frames of the same exception
    called: bool = False  # whether a call must have raised it, and not a `raise` of the user's own
    within: Several = ()  # patterns for one of the frames of the failure
    origin: tuple[Origin, ...] = ()  # whose the failure is
    exits: str = ""  # regular expression, searched in what is known of processes that have ended

    @model_validator(mode="after")
    def _bound(self) -> Rule:
        if given := sorted({"type", "base", "origin"} & self.labels.keys()):
            raise ValueError(f"the label '{given[0]}' is set by spark-ext")
        if self.message and not (self.exception or self.condition or self.code):
            raise ValueError("'message' needs 'exception', 'condition' or 'code': text alone decides nothing")
        if not (self.of_one or self.within or self.origin or self.exits):
            raise ValueError(
                "it matches every failure: name at least one of exception, condition, sqlstate, code, "
                "errno, at, beside, within, origin, exits"
            )
        for pattern in filter(None, (self.message, self.exits)):
            try:
                re.compile(pattern)
            except re.error as problem:
                raise ValueError(f"'{pattern}' is not a regular expression: {problem}") from None
        return self

    @property
    def of_one(self) -> bool:
        """Whether it expects something of one exception."""
        return bool(
            self.exception or self.condition or self.sqlstate or self.code or self.errno or self.at or self.beside
        )

    def matches(self, evidence: Evidence, origin: Origin) -> Raised | None:
        """The innermost matching exception, or the root one if the rule expects nothing of it; None: no match."""
        if self.origin and origin not in self.origin:
            return None
        if self.exits and not any(re.search(self.exits, one) for one in evidence.exits):
            return None
        if self.within and not any(_frame_is(frame, self.within) for frame in evidence.frames()):
            return None
        if not self.of_one:
            return evidence.root
        for one in reversed(evidence.related):
            if self._matches(one):
                return one
        return None

    @cached_property
    def _is_of(self) -> Callable[[str, tuple[str, ...]], bool]:
        """Whether a class, or one that it derives from, is meant; the few that occur are remembered."""
        pattern = _one_of(self.exception)
        return lru_cache(maxsize=128)(lambda kind, bases: any(map(pattern.match, (kind, *bases))))

    @cached_property
    def _conditions(self) -> re.Pattern[str]:
        return _one_of(self.condition)

    def _matches(self, raised: Raised) -> bool:
        return (
            (not self.exception or self._is_of(raised.kind, raised.bases))
            and (
                not self.condition or (bool(raised.condition) and self._conditions.match(raised.condition) is not None)
            )
            and (not self.sqlstate or (bool(raised.sqlstate) and raised.sqlstate.startswith(self.sqlstate)))
            and (not self.code or raised.code in self.code)
            and (not self.errno or raised.errno in self.errno)
            and (not self.message or re.search(self.message, raised.words) is not None)
            and (not self.at or _frame_is(_innermost(raised), self.at))
            and not (self.called and raised.by_user)
            and (not self.beside or any(_frame_is(frame, self.beside) for frame in raised.frames))
        )


class DecisionRow(BaseModel):
    """What is done about failures with certain labels."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    when: Mapping[str, Several]  # labels and possible values; all must be there. Empty: every failure
    do: Response
    attempts: int | None = Field(default=None, ge=0)  # restarts without a committed epoch; None: `restart_attempts`
    outage: bool = False  # whether restarts continue beyond `attempts` for the setting `outage_patience`
    most: int | None = Field(default=None, ge=1)  # restarts within `window`, committed epochs or not; none: any number
    window: Milliseconds = 3_600_000

    def applies(self, labels: Mapping[str, str]) -> bool:
        """Whether a failure with these labels is meant."""
        return all(labels.get(key) in values for key, values in self.when.items())


class PluginEntry(BaseModel):
    """A classifier of the user's."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    use: str  # `module:function`
    timeout: Milliseconds = 1_000


class FailureRules(BaseModel):
    """A whole file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    types: Annotated[tuple[OwnType, ...], Field(max_length=MOST_TYPES)] = ()
    rules: tuple[Rule, ...] = ()
    decisions: tuple[DecisionRow, ...] = ()
    user_packages: Several = ()  # installed packages that are the user's own
    plugins: tuple[PluginEntry, ...] = ()

    @property
    def known(self) -> tuple[str, ...]:
        """The names of all types."""
        return (*BUILT_IN, *(one.name for one in self.types))

    def base_of(self, name: str) -> FailureType:
        """The type of spark-ext's that a type is, or is a special case of."""
        return next((one.base for one in self.types if one.name == name), None) or FailureType(name)

    def before(self, other: FailureRules) -> FailureRules:
        """Both together, this one's rules and decisions first."""
        both = {name: (*getattr(self, name), *getattr(other, name)) for name in FailureRules.model_fields}
        return self.model_copy(update=both)


def read_rules(text: str, name: str) -> FailureRules:
    """The rules of a file."""
    who = "failure rules"
    found, node = read_model(FailureRules, text, name, who)
    for kind, given in (("rules", found.rules), ("types", found.types)):
        names = [one.name for one in given]
        twice = next((at for at, one in enumerate(names) if one in names[:at]), None)
        if twice is not None:
            raise wrong_line(name, line_of(node, (kind, twice)), f"there are two {kind} '{names[twice]}'", who)
    used: list[tuple[tuple[Any, ...], str]] = [(("rules", at, "type"), one.type) for at, one in enumerate(found.rules)]
    for at, row in enumerate(found.decisions):
        used += [(("decisions", at, "when", "type"), one) for one in row.when.get("type", ())]
    for place, one in used:
        if one not in found.known:
            what = f"{'.'.join(map(str, place))}: unknown type '{one}'; known are: {', '.join(found.known)}"
            raise wrong_line(name, line_of(node, place), what, who)
    return found


@cache
def _one_of(patterns: tuple[str, ...]) -> re.Pattern[str]:
    """One expression for all patterns: a rule may have a hundred, and `fnmatch` remembers few."""
    return re.compile("|".join(translate(pattern) for pattern in patterns))


def _frame_is(frame: Frame | None, patterns: tuple[str, ...]) -> bool:
    return frame is not None and any(_one_of(patterns).match(name) is not None for name in _names(frame))


@lru_cache(maxsize=4096)
def _names(frame: Frame) -> tuple[str, ...]:
    """How patterns may name a frame: `pyspark/worker.py`, `pyspark/worker.py:main`, `org.apache.X.method`."""
    if not frame.file.endswith(".py") and not frame.file.startswith("<frozen "):
        return (frame.function,)
    path = frame.file.replace("\\", "/")
    return path, f"{path}:{frame.function}"


def _innermost(raised: Raised) -> Frame | None:
    return next((frame for frame in raised.frames if frame.owner is not Owner.STANDARD), None)
