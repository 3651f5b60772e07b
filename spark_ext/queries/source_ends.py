"""The end of a source whose query runs on: its last steps, and the flags in the ledger that prove them.

1. the source's `end_of_input` is called, and a source that requires finalization is waited for;
2. the flag `source` is stored, with the epoch from which on the source had finished;
3. the last epoch is acknowledged to the source, and the source is closed;
4. the flag `closed` is stored: nothing is asked of the source any more, in this start or a later one.

That the rows are safe is known from Spark's log alone. After a crash, a source without the flag `source` begins with
`end_of_input` again, and one without `closed` with its acknowledgement; the final checkpoint of the query continues in
the same way when the query ends meanwhile. So a source never hears of its end of input again once it was closed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from spark_ext.failpoints import FailPoint, reach
from spark_ext.ledger.kinds import FinishedKind
from spark_ext.model.restarts import Action, Cause, Decision
from spark_ext.queries.restarts import Restarts, as_error

if TYPE_CHECKING:
    from spark_ext.ledger.schema import FinishedRow
    from spark_ext.queries.context import JobContext
    from spark_ext.queries.describe_failure import Diagnosis
    from spark_ext.queries.observer import EpochObserver, QueryPosition
    from spark_ext.queries.operator_hooks import OperatorHooks
    from spark_ext.queries.records import FinishedSources

ASK_AGAIN_S: Final = 1.0  # between two questions to a source that is not finalized, s


class SourceEnds:
    """Decides which source's end is due, and takes its steps: `finish` is for the query's worker."""

    def __init__(
        self,
        operator: str,
        context: JobContext,
        observer: EpochObserver,
        finished: FinishedSources,
        clock: Callable[[], float],
    ) -> None:
        self._operator, self._context, self._observer, self._clock = operator, context, observer, clock
        self._finished = finished
        self._restarts = Restarts(context.settings.restarts, ends_now=False)
        self._again_at: dict[str, float] = {}  # by source, when it is due again, s on the clock
        self._seen: dict[str, int] = {}  # by source, the committed epoch at which its end was seen
        self._taken: set[tuple[str, str]] = set()  # hooks that have returned: a further attempt leaves them out
        self._asked: dict[str, float] = {}  # by source, when it was first asked whether it is finalized, s on the clock
        self._late: set[str] = set()  # sources whose finalization takes too long
        self._rows: dict[tuple[str, str], FinishedRow] = {}  # a further attempt to write a flag writes the same row

    def left(self, position: QueryPosition) -> bool:
        """Whether a source has finished for which something is left to be done."""
        return not position.finished <= self._finished.of(FinishedKind.CLOSED)

    def next(self, position: QueryPosition, settled: Callable[[int], bool]) -> str | None:
        """The source whose end is due now; `settled` says whether all bad rows up to an epoch have been moved."""
        now = self._clock()
        for uid in sorted(position.finished - self._finished.of(FinishedKind.CLOSED)):
            seen = self._seen.setdefault(uid, position.epoch)
            if now >= self._again_at.get(uid, now) and settled(seen):
                return uid
        return None

    def finish(self, uid: str, operators: OperatorHooks, position: QueryPosition) -> bool:
        """Take the steps that are left; returns whether all were taken, or the source is not finalized."""
        assert position.offsets is not None
        if uid not in self._finished.of(FinishedKind.SOURCE):
            reach(FailPoint.SOURCE_BEFORE_END_OF_INPUT)
            self._once("end_of_input", uid, partial(operators.end_of_source, uid))
            if not operators.is_finalized(uid):
                self._notice_late(uid)
                return False
            reach(FailPoint.SOURCE_BEFORE_FLAGGED)
            self._record(FinishedKind.SOURCE, uid, position)
        reach(FailPoint.SOURCE_BEFORE_ACKNOWLEDGED)
        self._once("acknowledge", uid, partial(operators.acknowledge_last, uid, position.offsets))
        reach(FailPoint.SOURCE_BEFORE_CLOSE)
        self._once("close", uid, partial(self._close, uid, operators))
        reach(FailPoint.SOURCE_BEFORE_CLOSED)
        self._record(FinishedKind.CLOSED, uid, position)
        reach(FailPoint.SOURCE_CLOSED)
        return True

    def _once(self, step: str, uid: str, hook: Callable[[], None]) -> None:
        if (step, uid) not in self._taken:
            hook()
            self._taken.add((step, uid))

    def _close(self, uid: str, operators: OperatorHooks) -> None:
        try:
            operators.close_source(uid)
        except Exception as problem:
            # As at the query's end: nothing depends on it any more.
            self._context.write_behind.incident(self._operator, "close", f"source '{uid}': close: {problem}", "ignored")

    def _record(self, kind: FinishedKind, uid: str, position: QueryPosition) -> None:
        key = kind.value, uid
        if key not in self._rows:
            self._rows[key] = self._observer.source_flag(*key, position)
        self._context.write_behind.write_now([self._rows[key]])
        self._finished.add(*key)

    def _notice_late(self, uid: str) -> None:
        limit = self._context.settings.finalization_timeout / 1000
        since = self._asked.setdefault(uid, self._clock())
        if uid not in self._late and self._clock() - since > limit:
            self._late.add(uid)
            what = f"source '{uid}' was not finalized within {limit:g} s of its end; it is neither flagged nor closed"
            self._context.write_behind.incident(self._operator, "close", what, "the query runs on; asked again")

    def waits(self, uid: str) -> None:
        """The source is not finalized: it is asked again after a while."""
        self._again_at[uid] = self._clock() + ASK_AGAIN_S

    def failed(self, uid: str, found: Diagnosis) -> tuple[Decision, Diagnosis]:
        """A step has failed: whether it is tried again, and why."""
        found = replace(found, error=as_error(found.error, self._operator, f"the end of source '{uid}'"))
        decision = self._restarts.after(Cause.STEP, found, self._clock())
        if decision.action is Action.RESTART:
            self._again_at[uid] = self._clock() + decision.delay_ms / 1000
        return decision, found

    def progressed(self) -> None:
        """A source is closed: the next failure is the first."""
        self._restarts.progressed()
