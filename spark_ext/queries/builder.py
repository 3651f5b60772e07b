"""Queries that are added as a function of the user's configuration: `job.add(uid, build)` with one argument.

The function is called with the configuration in force at each start of its query. Which keys it reads is recorded: the
query is rebuilt when one of them changes.
"""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from spark_ext.control.stamps import FOLDER
from spark_ext.errors import ConfigurationError
from spark_ext.model.configuration import ALL, SETTINGS
from spark_ext.queries.spec import QueryBuild, QuerySpec, query_spec
from spark_ext.queries.writer_checks import NOTHING_STARTED
from spark_ext.spark.backend.kinds import backend_of
from spark_ext.spark.logs.spark_log import SparkLog
from spark_ext.spark.session.session_settings import with_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from spark_ext.model.offsets import Json

    BuildFunction = Callable[[Mapping[str, Json]], DataStreamWriter]

PLANS: Final = f"{FOLDER}/plans.json"
"""The configurations with which a query's epochs were planned; relative to its checkpoint directory.

An epoch that was planned and not committed is run again with the plan that it had, whatever the configuration is by
then. Spark's offsets do not say what that was, where a query has only sources of Spark's own.
"""

_PLANS_KEPT: Final = 20  # plans in the file: those before belong to epochs that were committed long ago


class Configured(Mapping[str, Any]):
    """The user's configuration of a query, as its function sees it: read-only, and it records which keys are read.

    Values are copies. Looking at all keys (a loop, `len`, `dict(...)`) reads all of them.
    """

    def __init__(self, values: Mapping[str, Json]) -> None:
        self._values = dict(values)
        self.read: set[str] = set()  # keys that were asked for, whether or not they are set

    def __getitem__(self, key: str) -> Json:
        self.read.add(key)
        return copy.deepcopy(self._values[key])

    def __contains__(self, key: object) -> bool:
        if isinstance(key, str):
            self.read.add(key)
        return key in self._values

    def __iter__(self) -> Iterator[str]:
        self.read.add(ALL)
        return iter(dict(self._values))

    def __len__(self) -> int:
        self.read.add(ALL)
        return len(self._values)

    def __repr__(self) -> str:
        self.read.add(ALL)
        return f"Configured({self._values!r})"


@dataclass(frozen=True)
class Builder:
    """A query's function, and what else its specification needs."""

    job: str
    uid: str
    function: BuildFunction
    spark: SparkSession
    available_now: bool = False

    def build(self, values: Mapping[str, Json], sequence: int = 0) -> QuerySpec:
        """Call the function with the user's configuration; `sequence` is that of the last control event in it."""
        operator = f"job '{self.job}', query '{self.uid}'"
        given = Configured(values)
        settings = settings_of(values, operator)
        with with_settings(self.spark, settings, operator):
            spec = query_spec(self.job, self.uid, self.function(given), available_now=self.available_now)
        built = QueryBuild(operator, self.build, dict(values), frozenset(given.read), settings, sequence)
        return replace(spec, built=built)


def is_builder(query: object, operator: str) -> bool:
    """Whether what was given to `job.add` is a function of the configuration: it needs one argument.

    A function without arguments, or whose arguments all have defaults, is called without any; one that needs several
    is refused.
    """
    try:
        parameters = inspect.signature(query).parameters.values()  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [one for one in parameters if one.kind in positional and one.default is inspect.Parameter.empty]
    if len(needed) > 1:
        raise ConfigurationError(
            f"the query's function needs {len(needed)} arguments: {', '.join(one.name for one in needed)}",
            operator=operator,
            kept=NOTHING_STARTED,
            do="give a function without arguments, or with one: the configuration",
        )
    return bool(needed)


def settings_of(values: Mapping[str, Json], operator: str) -> dict[str, str]:
    """The settings of Spark's among the keys of a configuration, as Spark takes them."""
    found: dict[str, str] = {}
    for key, value in values.items():
        if not key.startswith(SETTINGS):
            continue
        if isinstance(value, bool):
            found[key] = str(value).lower()
        elif isinstance(value, (str, int, float)):
            found[key] = str(value)
        else:
            raise ConfigurationError(
                f"the value of the setting '{key}' is {value!r}",
                operator=operator,
                kept=NOTHING_STARTED,
                do="give a text, a number, true or false; to put the session's own value back, unset the key",
            )
    return found


def refuse_change(before: QuerySpec, after: QuerySpec, committed: Mapping[str, str]) -> None:
    """Refuse what a running query cannot take over: another trigger or target.

    Sources, sinks and stateful operators are compared by their definitions, as at a start of the job.
    """
    assert after.built is not None
    operator = after.built.operator
    old, new = backend_of(before.writer).target(before.writer), backend_of(after.writer).target(after.writer)
    changed: list[tuple[str, object, object]] = [
        ("the path of its sink", old.options.get("path"), new.options.get("path")),
        ("its output mode", old.output_mode, new.output_mode),
        ("its partition columns", old.partitioning, new.partitioning),
        ("available_now", before.available_now, after.available_now),
    ]
    for what, former, given in changed:
        if former != given:
            raise _refused(f"{what} was {former}, and would be {given}", operator)
    for name, value in after.built.settings.items():
        if name in committed and committed[name] != value:
            raise _refused(
                f"the query has begun with {name} = {committed[name]}, which its checkpoint holds: {value} would have "
                "no effect",
                operator,
            )


def record_plan(checkpoint: str, epoch: int, values: Mapping[str, Json], sequence: int) -> None:
    """A query is about to be started, and nothing of it is planned and not committed."""
    log = SparkLog(checkpoint)
    before = _plans_in(log)
    kept = [plan for plan in before if plan["epoch"] < epoch][1 - _PLANS_KEPT :]
    plans = [*kept, {"epoch": epoch, "values": dict(values), "sequence": sequence}]
    if plans != before:
        log.replace(PLANS, json.dumps({"version": 1, "plans": plans}))


def planned_values(checkpoint: str, epoch: int) -> Mapping[str, Json] | None:
    """The configuration with which an epoch was planned; None if that is not known."""
    found = [plan for plan in _plans_in(SparkLog(checkpoint)) if plan["epoch"] <= epoch]
    return found[-1]["values"] if found else None


def _plans_in(log: SparkLog) -> list[dict[str, Json]]:
    return list(log.parsed(PLANS).get("plans", ()))


def _refused(what: str, operator: str) -> ConfigurationError:
    return ConfigurationError(
        what,
        operator=operator,
        kept="the query continues as it was",
        do="change that between two starts of the job, or with job.reset(...)",
    )
