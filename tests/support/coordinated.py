"""A coordinator over fake queries: real parts where they run without Spark, and null objects for the others."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timezone
from functools import partial
from itertools import count
from typing import Any, Final
from unittest.mock import Mock

import pytest

from spark_ext.checkpoints.unaligned import QueryLook
from spark_ext.jobs.checkpointing.barriers import AlignedCheckpoints
from spark_ext.jobs.checkpointing.periodic import PeriodicCheckpoints
from spark_ext.jobs.checkpointing.savepoint_requests import CompletionGate
from spark_ext.jobs.composition import Gate
from spark_ext.jobs.coordinator import Coordinator, JobParts
from spark_ext.jobs.ending import EndRequest
from spark_ext.jobs.execution_graph import ExecutionGraph
from spark_ext.jobs.latency import NoLatency
from spark_ext.jobs.linking.exchanges import Exchanges
from spark_ext.jobs.linking.gates import Gates
from spark_ext.jobs.linking.inboxes import Inboxes
from spark_ext.ledger.kinds import CheckpointMode
from spark_ext.ledger.schema import CheckpointRow
from spark_ext.model.dag import JobGraph, QueryNode
from spark_ext.observing.upkeep import Upkeep
from spark_ext.queries.context import JobContext
from spark_ext.queries.operator_hooks import OperatorHooks
from spark_ext.queries.run import QueryRun
from spark_ext.queries.worker import Outcome

END: Final = 10.0  # longer than any of these jobs takes, s


def without_hooks(monkeypatch: pytest.MonkeyPatch, *more: str) -> None:
    for hook in ("end_of_input", "final_checkpoint", "not_finalized", *more):
        monkeypatch.setattr(OperatorHooks, hook, lambda *_: None)
    monkeypatch.setattr(OperatorHooks, "close", lambda *_: [])


def no_rebuilds() -> Any:
    returns: dict[str, Any] = {"pending": False, "refusal": None, "rebuilt": {}}
    return Mock(**{f"{name}.return_value": value for name, value in returns.items()})


_UNASKED: Final = Mock(side_effect=AssertionError("no query waits"))


class RecordedAtOnce:
    """In the place of `Savepoints`: what is delivered is recorded where it was looked at, unless a test does so."""

    def __init__(self, context: JobContext) -> None:
        self.looks: list[Mapping[str, QueryLook]] = []
        self.take_id = partial(next, count(context.first_checkpoint))
        self._context = context

    def pin(
        self,
        number: int,
        kind: str,
        mode: CheckpointMode,
        looks: Mapping[str, QueryLook],
        folder: str | None,
        then: Callable[[Outcome[None]], None],
        triggered_at: datetime | None = None,
    ) -> CompletionGate:
        self.looks.append(looks)
        gate, incarnation, at = CompletionGate(), self._context.incarnation, datetime.now(timezone.utc)
        gate.complete()
        queries = {uid: {"epoch": look.newest, "finished": look.finished} for uid, look in looks.items()}
        row = CheckpointRow(
            checkpoint_id=number, kind=kind, status="COMPLETED", lineage=incarnation.lineage,
            incarnation=incarnation.number, metadata={"queries": queries}, at=at, mode=mode.value,
            triggered_at=triggered_at or at,
        )  # fmt: skip
        self._context.write_behind.put(row)
        then(Outcome())
        return gate

    def tick(self) -> None: ...

    def end(self, reason: str) -> None: ...


def execution_of(
    runs: Iterable[QueryRun], graph: JobGraph | None = None, waiting: Mapping[str, tuple[str, ...]] | None = None
) -> ExecutionGraph:
    """Queries under supervision; without a graph they are independent."""
    made, runs = ExecutionGraph(), tuple(runs)
    made.plan(graph or JobGraph(tuple(QueryNode(run.spec.uid) for run in runs)), waiting or {})
    for run in runs:
        made.add(run)
    return made


def unlinked(context: JobContext, execution: ExecutionGraph) -> Exchanges:
    inboxes = Inboxes(context, execution, ())
    return Exchanges(context, execution, (), lambda uid: False, {}, lambda views: None, inboxes)


def coordinated(
    context: JobContext,
    ledger: Any,
    execution: ExecutionGraph,
    *,
    gates: Sequence[Gate] = (),
    build: Callable[[Gate], QueryRun] = _UNASKED,
    begin: Callable[[QueryRun], None] = lambda run: None,
    savepoints: Any = None,
    at_end: Sequence[Callable[[], object]] = (),
) -> tuple[Coordinator, JobParts]:
    savepoints = savepoints or RecordedAtOnce(context)
    exchanges = unlinked(context, execution)
    parts = JobParts(
        request=EndRequest(context, execution),
        upkeep=Upkeep(context, ledger, execution.keep_registered),
        exchanges=exchanges,
        inboxes=Inboxes(context, execution, ()),
        gates=Gates(context, execution, gates, build, begin),
        savepoints=savepoints,
        aligned=AlignedCheckpoints(context, execution, exchanges, savepoints),
        periodic=PeriodicCheckpoints(context, execution, exchanges, savepoints),
        controller=Mock(stop_requested="", paused=Mock(return_value=False)),
        latency=NoLatency(),
        dumps=Mock(),
    )
    return Coordinator(context, execution, parts, {}, at_end), parts
