"""What is wrong with a query's rows while it runs: bad rows, on their way and if too many; input that changed later."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final

from spark_ext.bad_rows.options import BadRowLimits, BadRowOptions
from spark_ext.bad_rows.settle import Moved, Settler
from spark_ext.errors import DataError, SparkExtError
from spark_ext.incidents.types import fingerprint_of
from spark_ext.ledger.schema import BadRowsRow
from spark_ext.queries.observer import LIST_EVERY
from spark_ext.queries.restarts import UNREADABLE, Outage, as_error
from spark_ext.spark.session.registry import noted_changed
from spark_ext.storage import local_path

if TYPE_CHECKING:
    from spark_ext.queries.context import JobContext
    from spark_ext.queries.history import EpochHistory
    from spark_ext.queries.spec import OperatorSpec, QuerySpec
    from spark_ext.queries.worker import Worker

_NOTES_EVERY: Final = 1.0  # between two looks at what planners note of changed input, s
_MARK_EVERY: Final = 60.0  # between two looks whether bad files were read since, s
_FIELDS: Final = ("uid", "on_bad_row", "bad_rows_path", "max_bad_share", "max_bad_rows")


class BadRowsWatch:
    """Knows up to which epoch bad rows were moved, and how many there were in this run.

    `move` is for the query's worker, all else for the thread that decides.
    """

    def __init__(
        self,
        spec: QuerySpec,
        context: JobContext,
        lineage: int,
        *,
        history: EpochHistory,
        worker: Worker,
        clock: Callable[[], float],
    ) -> None:
        self._query, self._context, self._lineage = spec.uid, context, lineage
        self._checkpoint = context.checkpoint_of(spec.uid)
        self._operator = context.operator(spec.uid)
        self._worker = worker
        self._clock = clock
        self._history = history
        self._failure: SparkExtError | None = None  # why they could not be moved
        self._limits = {source.uid: _limits(source) for source in spec.sources if _quarantines(source)}
        sink = spec.sink
        self._limits_of_sink = _limits(sink) if sink is not None and _quarantines(sink) else None
        # An earlier start may have left some of an operator that fails on them now.
        self._local = local_path(context.state) is not None
        self._collects = bool(self._limits or self._limits_of_sink or spec.rules)
        self._uids = tuple(source.uid for source in spec.sources) if self._limits or self._local else ()
        # Sources that put whole files aside, with the tables of their bad rows; None: the default.
        self._of_files = {
            source.uid: _options(source).bad_rows_path for source in spec.sources if _puts_files_aside(source)
        }
        self._marked_at = clock()
        self._sinks = self._limits_of_sink is not None or bool(spec.rules) or self._local
        self._upto: int | None = None
        self._waits = False  # whether something was waiting at the last lookup, perhaps for an epoch repeated now
        self._again_at = float("-inf")
        self._outage = Outage("the table of bad rows, or what waits for it,", self._operator, context)
        self._settler: Settler | None = None
        self._lock = threading.Lock()
        self._arrived: list[Moved] = []
        self._tables: dict[str, str] = {}
        self.counts: Counter[str] = Counter()  # bad rows that were moved in this run, by the uid of the source or sink
        self.files: tuple[str, ...] = ()  # bad files among them
        self.failures: Counter[str] = Counter()  # rows that were found to fail rules in this run, by rule
        self._on_fail = {rule.name: rule.on_fail for rule in spec.rules}
        self._newest = -1
        self._of_sink: tuple[str, tuple[int, int]] | None = None  # uid, and how many of its rows were bad

    @property
    def total(self) -> int:
        """Bad rows of all sources and of the sink that were moved in this run."""
        return sum(self.counts.values())

    def settled(self, committed: int) -> bool:
        """Whether all bad rows up to an epoch have been moved."""
        return not (self._uids or self._sinks) or (self._upto is not None and self._upto >= committed)

    def poll(self, committed: int, *, stopping: bool, last: bool = False) -> SparkExtError | None:
        """Have the worker move what waits; returns why the query has to be given up, or None.

        The limits do not matter if the query is being stopped. `last`: the job is ending. What was committed last may
        not be known then; Spark's log is asked.
        """
        if self.due(committed + last, self._clock(), last=last) and (last or not self._worker.busy):
            self._worker.do("moving bad rows", self.move, lambda outcome: self.moved(outcome.problem(), committed))
        return self._failure or (None if stopping else self._exceeded())

    def due(self, committed: int, now: float, *, last: bool = False) -> bool:
        """Whether `move` is to be called. Where nothing waits that is found out here, at the cost of a lookup.

        On an object store, where a lookup is a request, once a second.
        """
        if self._of_files and (last or now >= self._marked_at + _MARK_EVERY) and self._outage.due(now):
            return True
        if self.settled(committed) or not self._outage.due(now) or (now < self._again_at and not last):
            return False
        if not self._collects and self._upto is not None and not self._waits:
            self._upto = committed
            return False
        try:
            settler = self._settle()
            waiting = any(settler.waiting(uid) for uid in self._uids) or (self._sinks and settler.sinks_waiting())
        except (*UNREADABLE, ValueError):
            return True
        self._waits = waiting
        if not waiting:
            self._upto = committed
        return waiting

    def _settle(self) -> Settler:
        if self._settler is None:
            context = self._context
            self._settler = Settler(
                context.job,
                context.job_id,
                context.state,
                self._query,
                self._lineage,
                self._checkpoint,
                context.settings.storage_options,
            )
        return self._settler

    def move(self) -> None:
        """Move what committed epochs have left."""
        settler = self._settle()
        for uid in self._uids:
            found = settler.settle(uid)
            with self._lock:
                self._arrived += found
        for uid, table in self._of_files.items():
            settler.mark_read(uid, table)
        self._marked_at = self._clock()
        if self._sinks:
            of_sinks = settler.settle_sinks()
            with self._lock:
                self._arrived += of_sinks

    def moved(self, problem: Exception | None, upto: int) -> None:
        """`move` has returned, or raised a problem: count what it has moved. It is called again if it has failed.

        `upto` is the newest epoch that was committed before it.
        """
        now = self._clock()
        with self._lock:
            arrived, self._arrived = self._arrived, []
        for one in arrived:
            self._count(one)
        if problem is None:
            self._outage.over()
            if not self._local:
                self._again_at = now + LIST_EVERY
            self._upto = upto if self._upto is None else max(upto, self._upto)
        elif isinstance(problem, UNREADABLE):
            self._failure = self._outage.failed(problem, now)
        else:
            self._failure = as_error(problem, self._operator)

    def _count(self, moved: Moved) -> None:
        who = f"{moved.role} '{moved.uid}'"
        told = self._context.write_behind.incident
        if moved.rows and not self.counts[moved.uid]:
            what = f"{who} has bad rows: {moved.rows} in epoch {moved.epoch}"
            files = f"; among them files: {', '.join(moved.files[:10])}" if moved.files else ""
            told(
                f"{self._operator}, {who}",
                "bad_rows",
                f"{what}{files}",
                f"moved into the table {moved.table}",
                fingerprint=fingerprint_of(what),
            )
        for rule, count in moved.failed.items():
            if self._on_fail.get(rule) == "drop" and not self.failures[rule]:
                what = f"{who} has rows that fail rule '{rule}': {count} in epoch {moved.epoch}"
                told(f"{self._operator}, {who}", "bad_rows", what, "dropped, as the rule says")
        self.failures.update(moved.failed)
        if moved.rows:
            self.counts[moved.uid] += moved.rows
            self.files += moved.files
            self._tables[moved.uid] = moved.table
        if moved.role == "source":
            self._newest = max(self._newest, moved.epoch)
        elif moved.of is not None:
            self._of_sink = moved.uid, moved.of
        self._context.write_behind.put(
            BadRowsRow(
                query=self._query,
                source=moved.uid,
                epoch=moved.epoch,
                rows=moved.rows,
                path=moved.table,
                lineage=self._lineage,
                incarnation=self._context.incarnation.number,
                at=datetime.now(timezone.utc),
                role=moved.role,
                rules=dict(moved.failed) or None,
            )
        )

    def _exceeded(self) -> DataError | None:
        """A source or the sink has more bad rows than it allows."""
        for uid, bad in self.counts.items():
            limits = self._limits.get(uid)
            what = None if limits is None else limits.exceeded(bad, self._history.rows_of(uid, self._newest))
            if what is not None:
                return self._too_many(what, "source", uid, "correct the input or the declared schema")
        limits = self._limits_of_sink
        if limits is None or self._of_sink is None:
            return None
        uid, (bad, given) = self._of_sink
        what = limits.exceeded(bad, given - bad) or limits.exceeded(self.counts[uid], None)
        do = "correct the rows in the query or the target's checks"
        return None if what is None else self._too_many(what, "sink", uid, do)

    def _too_many(self, what: str, role: str, uid: str, do: str) -> DataError:
        return DataError(
            f"{what}; they are in the table {self._tables[uid]}",
            operator=f"{self._operator}, {role} '{uid}'",
            kept="all committed epochs, and the bad rows in their table",
            do=f"look at the column 'reason' of that table; {do}, or raise the limit, and start the job again: it "
            "continues behind these rows",
        )


class ChangedInput:
    """Reads the notes of a query's sources."""

    def __init__(self, spec: QuerySpec, context: JobContext) -> None:
        self._uids = [source.uid for source in spec.sources]
        self._operator, self._context = context.operator(spec.uid), context
        self._known: Counter[str] = Counter()
        self._at = float("-inf")

    def poll(self, now: float, *, last: bool) -> None:
        """Look whether there is more; the last time when the query has ended. The time is in s, and never goes back."""
        if not last and now - self._at < _NOTES_EVERY:
            return
        self._at = float("inf") if last else now
        for uid in self._uids:
            count, names = noted_changed(self._context.registry, uid, self._context.incarnation.start)
            if count > self._known[uid]:
                self._known[uid] = count
                more = f" and {count - len(names)} more" if count > len(names) else ""
                self._context.write_behind.incident(
                    f"{self._operator}, source '{uid}'",
                    "changed_input",
                    f"source '{uid}' has read {count} channels that have changed since: {', '.join(names)}{more}",
                    "their rows stay as they were read; what is new in them is not read",
                )


def _given(operator: OperatorSpec) -> Mapping[str, Any]:
    return {name.lower(): value for name, value in operator.options.items() if name.lower() in _FIELDS}


def _quarantines(operator: OperatorSpec) -> bool:
    return bool(_given(operator).get("on_bad_row") == "quarantine")


def _puts_files_aside(source: OperatorSpec) -> bool:
    return any(name.lower() == "on_bad_file" and value == "quarantine" for name, value in source.options.items())


def _options(operator: OperatorSpec) -> BadRowOptions:
    return BadRowOptions.model_validate({"uid": operator.uid, **_given(operator)})


def _limits(operator: OperatorSpec) -> BadRowLimits:
    options = _options(operator)
    return BadRowLimits(options.max_bad_share, options.max_bad_rows)
