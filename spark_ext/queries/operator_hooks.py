"""The hooks of a query's operators that Spark never calls: the job calls them in the driver, at its start and its end.

Each call builds the operator from its options: nothing is kept of it between two calls.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from operator import methodcaller
from typing import TYPE_CHECKING

from spark_ext.errors import StateError
from spark_ext.failpoints import FailPoint, reach
from spark_ext.ledger.kinds import FinishedKind
from spark_ext.masking import guarded
from spark_ext.model import query_offsets
from spark_ext.model.commits import Claim, Epoch
from spark_ext.model.offsets import LoggedOffsets
from spark_ext.queries import operators
from spark_ext.sinks.runtime.position import forget, refuse_other_uid, remembered
from spark_ext.sinks.runtime.retry import attempts
from spark_ext.sources.contract import Committed
from spark_ext.spark.logs.spark_log import SparkLog
from spark_ext.storage import local_path

if TYPE_CHECKING:
    from spark_ext.queries.context import JobContext
    from spark_ext.queries.records import FinishedSources
    from spark_ext.queries.spec import QuerySpec
    from spark_ext.sinks.contract import TwoPhaseCommitSink
    from spark_ext.sources.contract import ChannelSource


class OperatorHooks:
    """Calls the hooks of one query's sources and sink. All come at least once: after a crash they may come again.

    A source that has finished while the query runs on is left out of those that come with the query's end; once it was
    closed, of all. `elsewhere`: its sink writes to another target from this start on, on request.
    """

    def __init__(
        self,
        spec: QuerySpec,
        context: JobContext,
        lineage: int,
        checkpoint: str,
        finished: FinishedSources,
        *,
        elsewhere: bool = False,
    ) -> None:
        self._spec = spec
        self._context = context
        self._lineage = lineage
        self._checkpoint = checkpoint
        self._finished = finished
        self._elsewhere = elsewhere

    def _sources(self, without: FinishedKind) -> Iterator[tuple[str, ChannelSource]]:
        """The sources, but for those with a flag of a kind."""
        flagged = self._finished.of(without)
        for source in self._spec.sources:
            if source.uid not in flagged:
                yield source.uid, operators.source(source.format, source.options)

    def _source(self, uid: str) -> ChannelSource:
        spec = next(source for source in self._spec.sources if source.uid == uid)
        return operators.source(spec.format, spec.options)

    def _sink(self) -> TwoPhaseCommitSink | None:
        sink = self._spec.sink
        return None if sink is None else operators.sink(sink.format, sink.options)

    def _all(self, without: FinishedKind = FinishedKind.CLOSED) -> list[ChannelSource | TwoPhaseCommitSink]:
        sink = self._sink()
        return [*(source for _, source in self._sources(without)), *((sink,) if sink is not None else ())]

    @staticmethod
    @guarded()
    def check(spec: QuerySpec) -> None:
        """Refuse rows that a query's sink does not take, before anything is done with it."""
        if spec.sink is not None:
            operators.sink(spec.sink.format, spec.sink.options).validate(spec.schema)

    @staticmethod
    @guarded()
    def check_claim(spec: QuerySpec, claim: Claim) -> None:
        """Refuse what a claim of a query's target would be refused for; nothing is written."""
        if spec.sink is not None:
            sink = operators.sink(spec.sink.format, spec.sink.options)
            sink.validate(spec.schema)
            sink.check_claim(claim)

    @guarded()
    def check_target(self) -> None:
        """Refuse what is refused before the claim; nothing is written."""
        self._validated()

    def _validated(self) -> TwoPhaseCommitSink | None:
        sink, spec = self._sink(), self._spec.sink
        if sink is not None and spec is not None:
            # A target may still be busy with requests of a driver that has died.
            tries = attempts(sink.options, f"the check of the target of sink '{spec.uid}'", reraise=True)
            tries(sink.validate, self._spec.schema)
        return sink

    @guarded()
    def claim(self) -> None:
        """Fence older incarnations off the target; see `TwoPhaseCommitSink.claim`."""
        sink, spec = self._validated(), self._spec.sink
        if sink is None or spec is None:
            return
        tries = attempts(sink.options, f"the claim of sink '{spec.uid}'", reraise=True)
        while True:
            claim = self._claim(spec.uid)
            try:
                tries(sink.claim, claim)
                break
            except StateError:
                # An older driver that is still alive may have planned and committed an epoch between the reads of the
                # state and of the target. It ends soon: the ledger has fenced it off.
                if self._planned() == (claim.query_id, claim.planned):
                    raise
        if self._elsewhere:
            forget(self._checkpoint)
            self._elsewhere = False
        reach(FailPoint.SINK_CLAIMED)

    def _claim(self, uid: str) -> Claim:
        context = self._context
        query_id, planned = self._planned()
        # Nothing is known of a new target; that no epoch is in doubt in the former one has been checked.
        last = None if self._elsewhere else remembered(self._checkpoint)
        if not self._elsewhere:
            refuse_other_uid(self._checkpoint, uid, self._lineage, query_id)
        return Claim(
            sink=uid,
            job=context.job,
            job_id=context.job_id,
            incarnation=context.incarnation.number,
            lineage=self._lineage,
            state=context.state,
            start=context.incarnation.start,
            starts=context.incarnation.starts,
            query_id=query_id,
            planned=planned,
            previous=last.of(uid, self._lineage, query_id) if last else None,
        )

    def _planned(self) -> tuple[str | None, int | None]:
        """Spark's id of the query, and the newest epoch that it has planned; -1: none, None: not known.

        Spark and Arrow spell some object stores differently. What Arrow cannot open is not known.
        """
        try:
            log = SparkLog(self._checkpoint)
            newest = log.newest_offsets()
            return log.query_id(), -1 if newest is None else newest
        except (OSError, ValueError):
            if local_path(self._checkpoint) is not None:
                raise
            return None, None

    @guarded()
    def open(self, ended: Collection[str]) -> None:
        """The query is about to start."""
        for source in self._spec.sources:
            if source.uid not in ended:
                operators.source(source.format, source.options).open()
        sink = self._sink()
        if sink is not None:
            sink.open()

    @guarded()
    def end_of_input(self) -> None:
        """All input of the query, and all its state, has been committed."""
        for operator in self._all(without=FinishedKind.SOURCE):
            operator.end_of_input()

    @guarded()
    def end_of_source(self, uid: str) -> None:
        """All input of a source has been committed, and the query runs on."""
        self._source(uid).end_of_input()

    @guarded()
    def is_finalized(self, uid: str) -> bool:
        """Whether a source is finalized, if it requires that."""
        spec = next(source for source in self._spec.sources if source.uid == uid)
        return not operators.requires_finalization(spec.format) or self._source(uid).is_finalized()

    @guarded()
    def acknowledge_last(self, uid: str, offsets: LoggedOffsets) -> None:
        """The flag of a source is stored: acknowledge its last epoch."""
        offset = query_offsets.source_offsets(offsets)[uid]
        self._source(uid).on_epoch_committed(Committed.of(offset, final=True))

    @guarded()
    def close_source(self, uid: str) -> None:
        """Nothing is asked of a source any more."""
        self._source(uid).close()

    @guarded()
    def not_finalized(self, query_id: str, epoch: int) -> str | None:
        """The first operator that is not finalized yet, for a message; None when all are."""
        flagged = self._finished.of(FinishedKind.SOURCE)
        for source in self._spec.sources:
            if source.uid not in flagged and not self.is_finalized(source.uid):
                return f"source '{source.uid}'"
        sink = self._spec.sink
        if sink is not None and operators.requires_finalization(sink.format):
            built = operators.sink(sink.format, sink.options)
            if not built.is_finalized(self._final(sink.uid, query_id, epoch)):
                return f"sink '{sink.uid}'"
        return None

    @guarded()
    def final_checkpoint(self, offsets: LoggedOffsets, query_id: str, epoch: int) -> None:
        """The final checkpoint is recorded: acknowledge the last epoch to the sources, and the end to the sink."""
        by_source = query_offsets.source_offsets(offsets)
        for uid, source in self._sources(without=FinishedKind.CLOSED):
            source.on_epoch_committed(Committed.of(by_source[uid], final=True))
        sink, spec = self._sink(), self._spec.sink
        if sink is not None and spec is not None:
            sink.on_final_checkpoint(self._final(spec.uid, query_id, epoch))

    @guarded()
    def acknowledge(self, offsets: LoggedOffsets) -> None:
        """A run has ended behind an epoch that is not the last: acknowledge it to the sources, as Spark does not."""
        by_source = query_offsets.source_offsets(offsets)
        for uid, source in self._sources(without=FinishedKind.CLOSED):
            if uid in by_source:
                source.on_epoch_committed(Committed.of(by_source[uid], final=False))

    def checkpoint(self, number: int, *, completed: bool) -> list[Exception]:
        """An aligned checkpoint of the job has been completed, or aborted; returns what the operators raised."""
        return self._in_all(methodcaller("on_checkpoint_completed" if completed else "on_checkpoint_aborted", number))

    def close(self) -> list[Exception]:
        """The query has stopped for good; returns what the operators raised."""
        return self._in_all(methodcaller("close"))

    def _in_all(self, call: Callable[[ChannelSource | TwoPhaseCommitSink], object]) -> list[Exception]:
        """Call all operators, whatever one of them raises."""
        problems: list[Exception] = []
        for operator in self._all():
            try:
                call(operator)
            except Exception as problem:
                problems.append(problem)
        return problems

    def _final(self, sink: str, query_id: str, epoch: int) -> Epoch:
        incarnation = self._context.incarnation
        return Epoch(sink, self._lineage, query_id, epoch, incarnation.number, final=True, start=incarnation.start)
