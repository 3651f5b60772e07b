"""A query that is built again while it runs: what it may become, and what has to be done before it starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from spark_ext.errors import ConfigurationError
from spark_ext.model.changes import compare
from spark_ext.queries.builder import planned_values, refuse_change
from spark_ext.queries.context import checkpoint_of
from spark_ext.queries.operator_hooks import OperatorHooks
from spark_ext.queries.spec import definition_of
from spark_ext.spark.backend.kinds import backend_of
from spark_ext.spark.logs.epoch_files import unrecorded_settings
from spark_ext.spark.logs.spark_log import SparkLog

if TYPE_CHECKING:
    from spark_ext.model.offsets import Json
    from spark_ext.queries.context import JobContext
    from spark_ext.queries.run import QueryRun
    from spark_ext.queries.spec import QuerySpec


def rebuilt(before: QuerySpec, checkpoint: str, values: Mapping[str, Json], sequence: int) -> QuerySpec:
    """A query built with another configuration, if it can take the place of the one that runs. May take seconds."""
    assert before.built is not None
    after = before.built.build(values, sequence)
    for change in compare(before.uid, definition_of(before), definition_of(after)):
        if change.breaking:
            raise ConfigurationError(
                str(change),
                operator=before.built.operator,
                kept="the query continues as it was",
                do="let the configuration decide how, not what is read and written",
            )
    refuse_change(before, after, _settings_in(checkpoint))
    OperatorHooks.check(after)
    return after


def _settings_in(checkpoint: str) -> dict[str, str]:
    """The settings of Spark's that a checkpoint holds: they are in force whatever the session has."""
    log = SparkLog(checkpoint)
    newest = log.newest_offsets()
    logged = None if newest is None else log.offsets(newest)
    if logged is None:
        return {}
    held = {str(key): str(value) for key, value in logged.metadata.get("conf", {}).items()}
    return {**held, **unrecorded_settings(checkpoint)}


def prepared(run: QueryRun, after: QuerySpec | None, context: JobContext) -> Callable[[], None] | None:
    """What the operators need before the query is started again: those that differ are claimed and opened again.

    Args:
        after: as it is to run; None: as it does.

    Returns:
        To be called on a worker's thread, once it has stopped; None: nothing.
    """
    before = run.spec
    if after is None:
        return None
    schemas = [backend_of(spec.writer).frame(spec.writer).schema for spec in (before, after)]
    claims = before.sink != after.sink or schemas[0] != schemas[1]
    opens = claims or before.sources != after.sources
    hooks = OperatorHooks(after, context, run.lineage, run.checkpoint)
    ended = run.position.ended_sources

    def prepare() -> None:
        if claims:
            hooks.claim()
        hooks.open(ended)

    return prepare if opens else None


def as_planned(spec: QuerySpec, state: str) -> QuerySpec | None:
    """The query with which an epoch was planned that an earlier start has not committed, if it differs."""
    if spec.built is None:
        return None
    checkpoint = checkpoint_of(state, spec.uid)
    log = SparkLog(checkpoint)
    planned, committed = log.newest_offsets(), log.newest_commit()
    if planned is None or (committed is not None and planned <= committed):
        return None
    values = planned_values(checkpoint, planned)
    if values is None or not spec.built.differs(values):
        return None
    return spec.built.build(values, spec.built.sequence)
