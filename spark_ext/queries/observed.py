"""What is known of one query of a running job: its state, and its epochs as they commit, which become rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from spark_ext.model.commits import Epoch
from spark_ext.model.execution import Shown, current
from spark_ext.model.lifecycle import IllegalTransition, State, can_follow
from spark_ext.queries.observer import EpochObserver, QueryPosition
from spark_ext.queries.outage import Outage
from spark_ext.queries.records import query_metadata
from spark_ext.queries.restarts import Restarts
from spark_ext.queries.watched import WatchedQuery
from spark_ext.spark.logs.spark_log import SparkLog
from spark_ext.spark.logs.watermarks import EventTimes

if TYPE_CHECKING:
    from spark_ext.errors import SparkExtError
    from spark_ext.ledger.schema import FinishedRow
    from spark_ext.model.checkpoint_metadata import QueryMetadata
    from spark_ext.model.offsets import LoggedOffsets
    from spark_ext.queries.context import JobContext
    from spark_ext.queries.history import Figures
    from spark_ext.queries.spec import QuerySpec
    from spark_ext.spark.watching.query_events import Hint


class ObservedQuery:
    """A query as it is observed. Its attributes are for reading; its state changes by the methods of `QueryRun`.

    Args:
        spec: the query.
        context: the job's.
        lineage: the query's: flags and sink identities of other lineages are not its own.
        flagged: per source, the last finish sequence whose flag is in the ledger.
        clock: s; never goes back.
    """

    def __init__(
        self,
        spec: QuerySpec,
        context: JobContext,
        lineage: int,
        flagged: Mapping[str, int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.spec = spec
        self.lineage = lineage
        self.checkpoint = f"{context.state.rstrip('/')}/queries/{spec.uid}/checkpoint"
        self._context = context
        self._observer = EpochObserver(
            spec, SparkLog(self.checkpoint), lineage, context.incarnation.number, flagged, clock
        )
        self._observer.history.divides = context.settings.epoch_parts
        self._event_times = EventTimes()
        self._outage = Outage(f"Spark's log of the query, {self.checkpoint},", self.who, context)
        self._restarts = Restarts(context.settings.restarts, ends_now=spec.available_now or context.until is not None)
        self._state = State.CREATED
        self._reason = ""
        self.watched = WatchedQuery(spec.uid, self.who, context)
        """What it does, finer than its state."""
        self._error: SparkExtError | None = None
        self._had_finished = False

    # -- looking ------------------------------------------------------------------------------------------------------

    @property
    def who(self) -> str:
        """Job and query, for messages."""
        return f"job '{self._context.job}', query '{self.spec.uid}'"

    @property
    def uid(self) -> str:
        """The query's uid."""
        return self.spec.uid

    @property
    def sampled_as(self) -> str:
        """Under which its Python processes leave notes; see `spark.attendance`."""
        return self.spec.uid

    @property
    def begun(self) -> int:
        """The start of the job in which the query began."""
        return self._context.begun.get(self.spec.uid, self._context.incarnation.number)

    @property
    def state(self) -> State:
        """The query's state."""
        return self._state

    @property
    def shown(self) -> Shown:
        """What it does, finer than its state."""
        return current(self._state, self.watched.shown)

    @property
    def stopping(self) -> bool:
        """Whether it has been asked to stop."""
        return self._restarts.stopping

    @property
    def reason(self) -> str:
        """Why it entered its state; "" when that needs no reason."""
        return self._reason

    @property
    def error(self) -> SparkExtError | None:
        """Why it failed for good; None unless it did."""
        return self._error

    @property
    def had_finished(self) -> bool:
        """Whether it had finished before this incarnation: nothing of it was started."""
        return self._had_finished

    @property
    def figures(self) -> Figures:
        """What is counted of it in this run."""
        return self._observer.history.figures

    @property
    def position(self) -> QueryPosition:
        """How far it has come. A snapshot: the parts belong together."""
        return self._observer.position

    @property
    def query_id(self) -> str | None:
        """Spark's id; None before the first start."""
        return self.position.query_id

    @property
    def committed(self) -> int:
        """The newest committed epoch; -1 when there is none."""
        return self.position.epoch

    @property
    def offsets(self) -> LoggedOffsets | None:
        """The offsets of the newest committed epoch; None when there is none."""
        return self.position.offsets

    @property
    def input_done(self) -> bool:
        """Whether the newest committed epoch has all input, and the state is empty."""
        return self.position.input_done

    @property
    def application(self) -> str:
        """Under which its target knows its epochs; "" without a sink of ours."""
        sink = self.spec.sink
        if sink is None:
            return ""
        number = self._context.incarnation.number
        return Epoch(sink.uid, self.lineage, self.query_id or "", self.committed, number).application

    @property
    def recent(self) -> tuple[tuple[int, LoggedOffsets], ...]:
        """The newest committed epochs with their offsets, ascending."""
        return self._observer.recent

    def logged(self) -> list[tuple[int, LoggedOffsets]]:
        """All committed epochs that Spark still has, ascending; for any thread.

        Raises:
            OSError: Spark's log cannot be read.
        """
        return self._observer.logged()

    def committed_at(self, epoch: int) -> float | None:
        """When Spark recorded the commit of an epoch, s since 1970, by the clock of the storage; None: not known.

        Raises:
            OSError: Spark's log cannot be read.
        """
        return self._observer.committed_at(epoch)

    def metadata(self, position: QueryPosition | None = None, *, finished: bool | None = None) -> QueryMetadata:
        """The query's part of a checkpoint.

        Args:
            position: where; None: at its newest committed epoch.
            finished: whether it had finished there; None: by its state.
        """
        at = position or self.position
        return query_metadata(
            self.spec,
            at.query_id,
            None if at.epoch < 0 else at.epoch,
            at.offsets,
            finished=self._state is State.FINISHED or at.input_done if finished is None else finished,
            restored=self._had_finished,
        )

    def final_flags(self, position: QueryPosition) -> list[FinishedRow]:
        """The finished flags that follow from the query's final checkpoint, and any of a channel that is missing."""
        return self._observer.final_flags(position)

    # -- what earlier runs left ---------------------------------------------------------------------------------------

    def restore(self, known: tuple[str, int] | None) -> None:
        """Read what earlier runs have left: the facts from which this one continues.

        Args:
            known: Spark's query id and the newest committed epoch as the ledger has them; None: never ran.

        Raises:
            StateError: the ledger knows committed epochs of this query and its checkpoint is gone or another one.
        """
        self._observer.restore(known, self.who)

    def finished_before(self, known: tuple[str, int] | None) -> None:
        """The query had finished in an earlier run: nothing of it is started, its checkpoint is not needed.

        Args:
            known: Spark's query id and the last epoch, as the ledger has them.
        """
        if known is not None:
            self._observer.recall(known)
        self._had_finished = True
        self._enter(State.FINISHED)
        self.watched.had_finished()

    # -- epochs -------------------------------------------------------------------------------------------------------

    def report(self, hint: Hint) -> None:
        """Take an event of a Spark query, if it is this one's; called on Spark's listener thread."""
        if hint.kind == "progress" and hint.query_id == self.query_id:
            self._observer.history.report(hint)
            self._event_times.take(hint)

    def observe(self) -> None:
        """Take in the epochs that have been committed since the last look.

        Raises:
            OSError: Spark's log cannot be read.
        """
        flags = self._observer.look()
        if flags is not None:
            self._restarts.progressed()
            self._context.write_behind.committed(self.spec.uid, self.committed)
            self.watched.committed()
            self._show()
            for flag in flags:
                self._context.write_behind.put_soon(flag)

    def _record_epochs(self, *, everything: bool = False) -> None:
        for row in self._observer.epoch_rows(everything=everything):
            self._context.write_behind.put(row)

    # -- states -------------------------------------------------------------------------------------------------------

    def look_closer(self, *, paused: bool) -> None:
        """Take in what the monitor has seen, and whether a control event keeps the sources from reading."""
        self.watched.take(running=self._state is State.RUNNING, paused=paused)
        self._show()

    @property
    def _being_started(self) -> bool:
        """Whether Spark is asked to start it."""
        return False

    def _show(self) -> None:
        self.watched.show(self._state, self._reason, starting=self._being_started)

    def _become(self, state: State, reason: str = "", incident: str | None = None) -> None:
        """Enter a state and record it; entering the present one again is no event.

        Args:
            state: to enter.
            reason: why.
            incident: that led to it.
        """
        if state is not self._state:
            self._enter(state)
            self._reason = reason
            self.watched.incident = incident
            self._show()
        elif incident is not None:
            # A further failure while it recovers: the time from now on is that one's.
            self.watched.incident = incident
            self._show()

    def _enter(self, state: State) -> None:
        self._require(state)
        self._state = state

    def _require(self, state: State) -> None:
        if not can_follow(self._state, state):
            raise IllegalTransition(f"{self.who}: {state.value} cannot follow {self._state.value}")
