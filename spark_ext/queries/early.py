"""Rows of windows that are still open, shown in the target at the end of a run.

Of the newest epoch of a query a copy is made aside, and one more epoch is planned in its log: with the same offsets, so
that sources are asked for nothing, and with a watermark behind all windows. Spark runs this epoch alone. It empties the
copy's state, and its sink replaces the rows of these windows in a commit that is fenced like an epoch's, and is none.
The query itself, its log and its state are only read.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from threading import Event
from typing import TYPE_CHECKING, Final

from spark_ext.errors import ConfigurationError, refused
from spark_ext.failpoints import FailPoint, reach
from spark_ext.model.end_of_input import END_MICROS
from spark_ext.queries import operators
from spark_ext.queries.spark_query import SparkQuery
from spark_ext.queries.writer_checks import NOTHING_STARTED
from spark_ext.sinks.runtime.writer import SHOWN
from spark_ext.spark.backend.kinds import backend_of
from spark_ext.spark.logs.epoch_files import copies_state, files_of_epoch, is_stateful
from spark_ext.spark.logs.spark_log import SparkLog, with_watermark
from spark_ext.storage import Folder, child, folder_at, link

if TYPE_CHECKING:
    from spark_ext.model.definitions import QueryDefinition
    from spark_ext.queries.context import JobContext
    from spark_ext.queries.spec import QuerySpec

_LOOK_EVERY_S: Final = 0.05


def why_not_shown(spec: QuerySpec, operator: str) -> str:
    """Why a query has no rows that could be shown early; "" if it has. Refuses rows that might not be replaced."""
    if spec.sink is None:
        return "its sink is one of Spark's own"
    sink, frame = operators.sink(spec.sink.format, spec.sink.options), backend_of(spec.writer).frame(spec.writer)
    who, key = f"{operator}, sink '{spec.sink.uid}' ({spec.sink.format})", sink.early_key()
    if key is None:
        return f"its sink '{spec.sink.uid}' ({spec.sink.format}) does not replace rows by a key"
    groups = backend_of(frame).open_groups(frame)
    if groups is None:
        return "it keeps no windows open"
    if groups.problem:
        raise _refused(groups.problem, operator, "run it in a job of its own, without emit='early'")
    if not copies_state(frame.sparkSession):
        what = "the state of a query can be copied only if it is in RocksDB, with unique ids in Spark's log"
        raise _refused(
            what, operator, "make the session with spark_ext.session(), and start with a new state directory"
        )
    if spec.rules or sink.options.on_bad_row == "quarantine":
        what = spec.rules[0].said if spec.rules else "on_bad_row=quarantine"
        do = "judge the rows before the aggregation, in a query that writes an exchange"
        raise _refused(f"{what} may leave out a row that was shown before", who, do)
    known = frozenset().union(*groups.keys)
    if not set(key) <= known or not all(names & set(key) for names in groups.keys):
        raise _refused(
            f"the sink's key ({', '.join(key)}) is not that of the aggregation: a row that was shown could stay beside "
            "the one that follows it",
            who,
            "let the key be one column for each column of groupBy, as it is, and of the window its start or end"
            + (f"; such columns are: {', '.join(sorted(known))}" if known else ""),
        )
    return ""


def check_early(specs: Sequence[QuerySpec], job: str, *, waiting: bool) -> None:
    """Refuse a run with `emit="early"` that could leave a row behind, or would show nothing."""
    reasons = {spec.uid: why_not_shown(spec, f"job '{job}', query '{spec.uid}'") for spec in specs}
    if all(reasons.values()) and not waiting:
        raise _refused(
            "no query has anything to show early: " + "; ".join(f"'{uid}': {why}" for uid, why in reasons.items()),
            f"job '{job}'",
            "write the result of a windowed aggregation with mode=upsert and its key, or leave emit='early' out",
        )


def with_early(
    definition: QueryDefinition,
    spec: QuerySpec,
    before: QueryDefinition | None,
    job: str,
    accepted: Collection[str] = (),
    *,
    early: bool,
) -> QueryDefinition:
    """The definition, with whether rows of open windows are in the target, or may be; `before` is the last one.

    Refuses a query that has shown rows, and might now leave one behind.
    """
    operator, key = f"job '{job}', query '{spec.uid}'", f"{spec.uid}.early"
    shown = before is not None and before.early and key not in accepted
    if not (shown or early):
        return definition
    try:
        reason = why_not_shown(spec, operator)
    except ConfigurationError as problem:
        reason = problem.what
        if not shown:
            raise
    if shown and reason:
        raise refused(
            f"an earlier run has shown open windows early, and their rows might stay as they are: {reason}",
            operator,
            f"put the query back as it was; or, once no window of then is open, say accept=('{key}',) in job.add",
            NOTHING_STARTED,
        )
    return replace(definition, early=not reason)


def forget_copies(checkpoint: str) -> None:
    """Remove what a driver that was killed has left."""
    _folder(checkpoint).delete_tree()


class EarlyRows:
    """What one query shows of its open windows. `stopping`: whether the job has been asked to stop."""

    def __init__(self, context: JobContext, checkpoint: str, lineage: int, stopping: Callable[[], bool]) -> None:
        self.wanted = context.early
        self.rows: int | None = None  # shown in this run; None: it has not shown any
        self._context, self._checkpoint, self._lineage, self._stopping = context, checkpoint, lineage, stopping

    def show(self, spec: QuerySpec, query_id: str | None, epoch: int, claim: Callable[[], None]) -> str | None:
        """Show the rows of the windows that are open after a committed epoch; returns what was done, in words.

        None: the job was asked to stop meanwhile. `claim` makes sure that the target is claimed. For the worker's
        thread, while the query does not run.
        """
        reason = why_not_shown(spec, self._context.operator(spec.uid))
        if reason:
            return f"nothing was shown early: {reason}"
        self.rows = 0
        if query_id is not None and epoch >= 0 and is_stateful(self._checkpoint, epoch):
            claim()
            mark = self._context.incarnation
            # A driver that has been overtaken, and does not know it yet, has a folder of its own.
            name = f"{mark.number}-{mark.start:x}"
            try:
                self.rows = self._shown(spec, query_id, epoch, child(_folder(self._checkpoint).uri, name, "checkpoint"))
            finally:
                with suppress(OSError):  # the next start removes it
                    _folder(self._checkpoint).delete_tree(name)
                    _folder(self._checkpoint).prune()
            if self.rows is None:
                return None
        return f"{self.rows:,} row{'' if self.rows == 1 else 's'} of open windows shown early"

    def _shown(self, spec: QuerySpec, query_id: str, epoch: int, copy: str) -> int | None:
        self._copy(spec, epoch, copy)
        reach(FailPoint.EARLY_COPIED)
        query = SparkQuery(spec, self._context, copy, self._lineage, lambda: epoch - 1, shows=query_id)
        try:
            query.start(only_planned=True)
            pause = Event()
            while not query.ended and not self._stopping():
                pause.wait(_LOOK_EVERY_S)
        finally:
            query.stop()
        end, rows = query.take_end(), SparkLog(copy).read(SHOWN)
        if rows is None and self._stopping():
            return None
        if end is not None and end.failure is not None:
            raise end.failure
        query.settle()
        reach(FailPoint.EARLY_SHOWN)
        return int(rows or 0)

    def _copy(self, spec: QuerySpec, epoch: int, copy: str) -> None:
        frame, source = backend_of(spec.writer).frame(spec.writer), self._checkpoint
        operator = self._context.operator(spec.uid)
        for name in files_of_epoch(frame.sparkSession, source, epoch, operator):
            link(child(source, name), child(copy, name))
        folder, offsets = folder_at(copy), SparkLog(source).read(f"offsets/{epoch}")
        assert offsets is not None
        folder.write("metadata", json.dumps({"id": str(uuid.uuid4())}))  # its reports are not those of the query
        folder.write(f"offsets/{epoch + 1}", with_watermark(offsets, END_MICROS // 1000))


def _parent(checkpoint: str) -> str:
    return checkpoint.rstrip("/").rpartition("/")[0]


def _folder(checkpoint: str) -> Folder:
    return folder_at(child(_parent(checkpoint), "early"), make=False)


def _refused(what: str, operator: str, do: str) -> Exception:
    return refused(f"emit='early': {what}", operator, do, NOTHING_STARTED)
