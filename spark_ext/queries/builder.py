"""Queries that are added as a function of the user's configuration: `job.add(uid, build)` with one argument.

The function is called with the configuration in force at each start of its query. Which keys it reads is recorded: the
query is built anew when one of them changes.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from spark_ext.errors import ConfigurationError
from spark_ext.model.holds import ALL, SETTINGS
from spark_ext.queries.spec import Built, QuerySpec, query_spec
from spark_ext.queries.writer_checks import NOTHING_STARTED
from spark_ext.spark.backend.kinds import backend_of
from spark_ext.spark.session.session_settings import with_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from spark_ext.model.offsets import Json

    BuildFunction = Callable[[Mapping[str, Json]], DataStreamWriter]


class Configured(Mapping[str, Any]):
    """The user's configuration of a query, as its function sees it: read-only, and it records which keys are read.

    Values are copies. Whoever looks at all keys (a loop, `len`, `dict(...)`) has read all of them.

    Args:
        values: by key.
    """

    def __init__(self, values: Mapping[str, Json]) -> None:
        self._values = dict(values)
        self.read: set[str] = set()
        """Keys that were asked for, whether or not they are set."""

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

    @property
    def who(self) -> str:
        """Job and query, for messages."""
        return f"job '{self.job}', query '{self.uid}'"

    def build(self, values: Mapping[str, Json], sequence: int = 0) -> QuerySpec:
        """Call the function.

        Args:
            values: the user's configuration of the query.
            sequence: of the last control event in it.

        Raises:
            ConfigurationError: a setting of the session or the query is refused.
            Exception: what the function raises.
        """
        given = Configured(values)
        settings = settings_of(values, self.who)
        with with_settings(self.spark, settings, self.who):
            spec = query_spec(self.job, self.uid, self.function(given), available_now=self.available_now)
        return replace(spec, built=Built(self, dict(values), frozenset(given.read), settings, sequence))


def is_builder(query: object, who: str) -> bool:
    """Whether what was given to `job.add` is a function of the configuration: it needs one argument.

    A function without arguments, or whose arguments all have defaults, is called without any.

    Raises:
        ConfigurationError: it needs more than one.
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
            operator=who,
            kept=NOTHING_STARTED,
            do="give a function without arguments, or with one: the configuration",
        )
    return bool(needed)


def settings_of(values: Mapping[str, Json], who: str) -> dict[str, str]:
    """The settings of Spark's among the keys of a configuration, as Spark takes them.

    Raises:
        ConfigurationError: a value is neither a text, a number nor a truth value.
    """
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
                operator=who,
                kept=NOTHING_STARTED,
                do="give a text, a number, true or false; to put the session's own value back, unset the key",
            )
    return found


def refuse_change(before: QuerySpec, after: QuerySpec, committed: Mapping[str, str]) -> None:
    """Refuse what a running query cannot take over: another trigger or target.

    Sources, sinks and stateful operators are compared by their definitions, as at a start of the job.

    Args:
        before: the query as it runs.
        after: as it is to run.
        committed: the settings of Spark's that its checkpoint holds, which are in force whatever the session has.

    Raises:
        ConfigurationError: names what has changed.
    """
    assert after.built is not None
    who = after.built.builder.who
    old, new = (backend_of(one.writer).target(one.writer) for one in (before, after))
    changed: list[tuple[str, object, object]] = [
        ("the path of its sink", old.path, new.path),
        ("its output mode", old.output_mode, new.output_mode),
        ("its partition columns", old.partitioning, new.partitioning),
        ("available_now", before.available_now, after.available_now),
    ]
    for what, former, given in changed:
        if former != given:
            raise _refused(f"{what} was {former}, and would be {given}", who)
    for name, value in after.built.settings.items():
        if name in committed and committed[name] != value:
            raise _refused(
                f"the query has begun with {name} = {committed[name]}, which its checkpoint holds: {value} would have "
                "no effect",
                who,
            )


def _refused(what: str, who: str) -> ConfigurationError:
    return ConfigurationError(
        what,
        operator=who,
        kept="the query continues as it was",
        do="change that between two starts of the job, or with job.reset(...)",
    )
