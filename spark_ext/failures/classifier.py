"""The classifier: the verdict of the rules, the labels of plugins, and what the table of decisions says.

A plugin is a function from a failure to labels. It declares the labels that it may set; two plugins that declare the
same one are refused at the start. One that raises, does not return in time, or sets a label that it has not declared,
costs its own labels and nothing else. (The contract follows Flink's FailureEnricher.)
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from importlib import import_module
from importlib.metadata import entry_points
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

from spark_ext.errors import ConfigurationError, refused
from spark_ext.failures.evidence import Evidence
from spark_ext.failures.labels import Response
from spark_ext.failures.rules import DecisionRow, FailureRules, read_rules
from spark_ext.failures.verdict import Verdict, judged
from spark_ext.masking import logger, mask

log = logger("spark_ext.failures")

GROUP: Final = "spark_ext.failure_classifiers"  # entry points of this group are plugins of every job in the environment
RESERVED: Final = frozenset({"type", "base", "origin", "cause", "code", "resource"})  # no plugin may declare them
LONGEST_LABEL: Final = 200  # characters of a label's value that are kept
DEFAULT_TIMEOUT: Final = 1.0  # how long a plugin may take for one failure, s


@dataclass(frozen=True)
class Failure:
    """What a plugin gets."""

    evidence: Evidence
    verdict: Verdict
    job: str = ""
    query: str = ""
    epoch: int = -1
    """The epoch that failed; -1: unknown."""


Labels: TypeAlias = "Mapping[str, str]"
_Function = TypeVar("_Function", bound="Callable[[Failure], Labels]")


def plugin(*keys: str) -> Callable[[_Function], _Function]:
    """Declare the labels that a function sets, and so make it a plugin.

        @sx.failures.plugin("team")
        def team(failure):
            return {"team": "billing"} if "billing" in failure.verdict.place else {}

    Args:
        keys: names of labels.
    """

    def declare(function: _Function) -> _Function:
        function.failure_labels = frozenset(keys)  # type: ignore[attr-defined]
        return function

    return declare


@dataclass(frozen=True)
class Plugin:
    """A plugin as it is called."""

    name: str
    keys: frozenset[str]
    function: Callable[[Failure], Labels]
    timeout: float = DEFAULT_TIMEOUT


class Classifier:
    """Judges failures. Safe for several threads.

    The user's own rules come before the shipped ones, which are read at the first failure. Two plugins that declare the
    same label are refused, and so is one that declares a label of the rules.
    """

    def __init__(self, own: FailureRules | None = None, plugins: Sequence[Plugin] = ()) -> None:
        self._own = own
        self._plugins = tuple(plugins)
        self._stuck: set[str] = set()
        owners: dict[str, str] = {}
        for plugin in self._plugins:
            for key in sorted(plugin.keys):
                if key in RESERVED:
                    raise _clash(plugin.name, f"declares the label '{key}', which the rules set")
                if key in owners:
                    raise _clash(plugin.name, f"declares the label '{key}', as does '{owners[key]}'")
                owners[key] = plugin.name

    @cached_property
    def _rules(self) -> FailureRules:
        return shipped() if self._own is None else self._own.before(shipped())

    @property
    def types(self) -> tuple[str, ...]:
        """The names of all types, those of the user's own last."""
        return (FailureRules() if self._own is None else self._own).known

    @property
    def user_packages(self) -> tuple[str, ...]:
        """Installed packages that are the user's own."""
        return self._rules.user_packages

    def judge(self, evidence: Evidence) -> Verdict:
        """The verdict of the rules alone, which never blocks."""
        return judged(evidence, self._rules)

    def classify(self, evidence: Evidence, *, job: str = "", query: str = "", epoch: int = -1) -> Verdict:
        """The verdict on a failure, with the labels of plugins, which may be slow and get all arguments."""
        verdict = self.judge(evidence)
        if not self._plugins:
            return verdict
        failure = Failure(evidence, verdict, job, query, epoch)
        labels = dict(verdict.labels)
        for plugin in self._plugins:
            labels.update(self._labels(plugin, failure))
        return replace(verdict, labels=labels)

    def decision(self, labels: Mapping[str, str]) -> DecisionRow:
        """The row of the table of decisions that is in force for a failure with these labels.

        A type of the user's own that no row names is treated as its base.
        """
        rows = self._rules.decisions
        if "base" in labels and not any(
            labels["type"] in row.when.get("type", ()) and row.applies(labels) for row in rows
        ):
            labels = {**labels, "type": labels["base"]}
        return next((row for row in rows if row.applies(labels)), DecisionRow(when={}, do=Response.RESTART))

    def _labels(self, plugin: Plugin, failure: Failure) -> dict[str, str]:
        if plugin.name in self._stuck:
            return {}
        given, problem = _within(plugin.timeout, lambda: plugin.function(failure))
        if isinstance(problem, TimeoutError):
            self._stuck.add(plugin.name)
            log.warning(
                "failure classifier '%s' has not returned within %g s: it is not called any more",
                plugin.name,
                plugin.timeout,
            )
            return {}
        if problem is None and not isinstance(given, Mapping):
            problem = TypeError(f"it returned {type(given).__name__}, not a mapping of labels")
        if problem is not None:
            log.warning("failure classifier '%s' failed: %s: %s", plugin.name, type(problem).__name__, problem)
            return {}
        assert isinstance(given, Mapping)
        undeclared = sorted(str(key) for key in given.keys() - plugin.keys)
        if undeclared:
            log.warning(
                "failure classifier '%s' sets labels that it has not declared, which are ignored: %s",
                plugin.name,
                ", ".join(undeclared),
            )
        return {key: mask(str(given[key]))[:LONGEST_LABEL] for key in given if key in plugin.keys}


def _within(seconds: float, action: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    """What an action returns or raises, on a thread of its own; a TimeoutError if it does not return in time."""
    outcome: list[tuple[Any, BaseException | None]] = []

    def run() -> None:
        try:
            outcome.append((action(), None))
        except BaseException as problem:
            outcome.append((None, problem))

    thread = threading.Thread(target=run, name="spark-ext-failure-classifier", daemon=True)
    thread.start()
    thread.join(seconds)
    return outcome[0] if outcome else (None, TimeoutError())


def _clash(name: str, what: str) -> ConfigurationError:
    return refused(
        f"failure classifier '{name}' {what}", "failure classifiers", "rename the label, or leave one of them out"
    )


@lru_cache(maxsize=1)
def shipped() -> FailureRules:
    """The rules that ship with the package, `conf/failures.yaml`."""
    return read_rules(files("spark_ext.conf").joinpath("failures.yaml").read_text(), "conf/failures.yaml")


def load(path: str | None = None) -> Classifier:
    """The classifier of a job: the user's rules and plugins, those of installed packages, and the shipped rules."""
    own = None if path is None else _read(path)
    given = () if own is None else own.plugins
    plugins = [_imported(entry.use, entry.use, entry.timeout / 1000) for entry in given]
    plugins += [_imported(point.name, point.value, DEFAULT_TIMEOUT) for point in entry_points(group=GROUP)]
    return Classifier(own, plugins)


def _read(path: str) -> FailureRules:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise refused(
            f"the failure rules {path} cannot be read: {problem}", "failure rules", "correct the setting 'failures'"
        ) from None
    return read_rules(text, path)


def _imported(name: str, place: str, timeout: float) -> Plugin:
    module, _, attribute = place.partition(":")
    try:
        function: Any = import_module(module)
        for part in filter(None, attribute.split(".")):
            function = getattr(function, part)
    except Exception as problem:
        raise _clash(name, f"cannot be imported: {type(problem).__name__}: {problem}") from problem
    keys = getattr(function, "failure_labels", None)
    if not callable(function) or keys is None:
        raise _clash(name, "is not declared with @spark_ext.failures.plugin")
    return Plugin(name, frozenset(keys), function, timeout)
