"""The targets that a restore in place puts back: where each was at the cut, and whether it can be put there again."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from spark_ext.checkpoints.savepoint import UNCHANGED
from spark_ext.errors import RESET, ConfigurationError, StateError
from spark_ext.jobs.composition import SINK
from spark_ext.model.commits import Claim, Epoch, FenceMark
from spark_ext.model.definitions import Role
from spark_ext.queries import operators
from spark_ext.queries.context import checkpoint_of
from spark_ext.sinks.runtime.retry import attempts
from spark_ext.spark.logs.spark_log import SparkLog

if TYPE_CHECKING:
    from spark_ext.jobs.restoring.restore_checks import Comparison
    from spark_ext.ledger import Incarnation, Ledger
    from spark_ext.ledger.memory import JobMemory
    from spark_ext.queries.spec import QuerySpec
    from spark_ext.sinks.contract import TwoPhaseCommitSink

REPLACED: Final = "replaced"  # the folder of a state directory into which a restore moves what it replaces


def interrupted_restores(ledger: Ledger) -> frozenset[int]:
    """The lineages of the restores that have begun since the last one that was completed."""
    return _attempts(ledger)[-1]


def _attempts(ledger: Ledger) -> list[frozenset[int]]:
    """For each restore that was completed, its lineage and those of its interrupted attempts; last the ones since."""
    found: list[frozenset[int]] = [frozenset()]
    for row in ledger.jobs():
        if row.event in ("restoring", "restored"):
            found[-1] |= {row.lineage}
        if row.event == "restored":
            found.append(frozenset())
    return found


@dataclass(frozen=True)
class Target:
    """The target of a query of the job, which a restore in place puts back."""

    spec: QuerySpec
    position: Any  # where it was at the cut
    untouched: bool  # whether nothing can have been committed to it since, by what the state knows
    lineage: int = 0  # the query's, before the restore
    query_id: str | None = None  # Spark's id of the query in the state; None: it has no checkpoint
    planned: int = -1  # the newest epoch that was planned; -1: none
    siblings: Mapping[str, Any] = field(default_factory=dict)  # positions of other sinks with the same target, by uid

    @property
    def place(self) -> tuple[str, Mapping[str, str]] | None:
        """What the target is; None for that of one of Spark's sinks."""
        sink = self.spec.sink
        return None if sink is None else (sink.format.lower(), operators.identity(sink.format, sink.options))

    @property
    def name(self) -> str:
        """Under which a user accepts that it cannot be put back: the sink's uid, or the query's for one of Spark's."""
        return self.spec.sink.uid if self.spec.sink is not None else self.spec.uid

    @property
    def sink(self) -> TwoPhaseCommitSink | None:
        """A new instance of what writes to it; None for a sink of Spark's own."""
        sink = self.spec.sink
        return None if sink is None else operators.sink(sink.format, sink.options)

    @property
    def described(self) -> str:
        """For messages."""
        sink = self.spec.sink
        if sink is None:
            return f"the sink of query '{self.spec.uid}' ({self.spec.sink_format}, one of Spark's own)"
        return f"sink '{sink.uid}' ({sink.format})"


class Targets:
    """The targets of a job that is restored in place."""

    def __init__(self, job: str, state: str, ledger: Ledger, comparison: Comparison) -> None:
        self._job, self._state, self._ledger, self._comparison = job, state, ledger, comparison

    def find(self, specs: Sequence[QuerySpec], memory: JobMemory) -> tuple[Target, ...]:
        """The target of each query, also of one that waits for others now and did not when it wrote; no exchanges."""
        there = (spec for spec in specs if spec.sink is None or spec.sink.format.lower() != SINK)
        found = [self._target(spec, memory) for spec in there]
        duplicates = self._comparison.duplicates
        shared = [one for one in found if one.place is not None and one.name not in duplicates]
        return tuple(
            replace(one, siblings={it.name: it.position for it in shared if it is not one and it.place == one.place})
            for one in found
        )

    def _target(self, spec: QuerySpec, memory: JobMemory) -> Target:
        part, sink, names = self._comparison.saved_query(spec.uid), spec.sink, self._names(spec.uid)
        known = memory.of(next((name for name in names if memory.knows(name)), spec.uid))
        logs = self._logs(names)
        query_id = next((found for log in logs if (found := log.query_id()) is not None), known.query_id)
        planned = max((epoch for log in logs if (epoch := log.newest_offsets()) is not None), default=-1)
        if part is None or part.epoch is None:
            untouched = known.committed < 0 and query_id is None
        else:
            same = all(log.query_id() == part.query_id for log in logs)
            untouched = same and planned <= part.epoch and self._has_all_logs(names)
        position = None
        if part is not None and sink is not None and sink.uid in part.sinks:
            position = part.sinks[sink.uid].position
        elif sink is not None:
            # The query came after the savepoint: all that it has written is taken away.
            number = self._ledger.newest_incarnation() or 0
            whole = Epoch(sink.uid, known.lineage, query_id or "", -1, number)
            position = operators.sink(sink.format, sink.options).position(whole)
        return Target(spec, position, untouched, known.lineage, query_id, planned)

    def _names(self, query: str) -> tuple[str, ...]:
        """The names under which a query may have run, the present one first."""
        other = (self._comparison.names.get(query), self._comparison.declared.renamed.get(query))
        return tuple(dict.fromkeys((query, *(name for name in other if name is not None))))

    def _logs(self, names: Sequence[str]) -> list[SparkLog]:
        """The query's checkpoints since the savepoint: the present one, and those that restores have moved aside."""
        places = {place for attempt in self._places() for place in attempt}
        logs = (SparkLog(checkpoint_of(place, name)) for place in sorted(places) for name in names)
        return [log for log in logs if log.exists()]

    def _has_all_logs(self, names: Sequence[str]) -> bool:
        """Whether no checkpoint in which the query has run since the savepoint is missing."""
        return all(
            any(SparkLog(checkpoint_of(place, name)).exists() for place in attempt for name in names)
            for attempt in self._places()
        )

    def _places(self) -> list[list[str]]:
        """Where its checkpoint is, was when each restore since the savepoint began, or was put by an attempt at one."""
        since = self._comparison.saved.about.lineage
        attempts = [[lineage for lineage in one if lineage > since] for one in _attempts(self._ledger)]
        moved = [[f"{self._state}/{REPLACED}/{lineage}" for lineage in one] for one in attempts]
        return [*(one for one in moved[:-1] if one), [*moved[-1], self._state]]

    def left_out(self, specs: Sequence[QuerySpec], memory: JobMemory) -> tuple[str, ...]:
        """The queries that have written, and whose targets are not put back: they are not in the job."""
        here = {name for spec in specs for name in self._names(spec.uid)}
        found = []
        for name in sorted(memory.names | {query for query, _ in memory.left_out}):
            known, part = memory.of(name), self._comparison.saved_query(name)
            sinks = () if known.definition is None else known.definition.of(Role.SINK)
            wrote = known.committed >= 0 and not any(one.format.lower() == SINK for one in sinks)
            again = known.left_out and (part is None or part.epoch is None)
            if again or (wrote and name not in here):
                found.append(name)
        return tuple(found)

    def check_left_out(self, specs: Sequence[QuerySpec], memory: JobMemory) -> None:
        """Refuse a query that has written since the savepoint and is not in the job, unless `job.remove` says so."""
        for name in self.left_out(specs, memory):
            known = memory.of(name)
            if name in self._comparison.declared.removed or known.removed or known.left_out:
                continue
            raise StateError(
                f"query '{name}' came after the savepoint and is not in the job: what it has written would stay, and "
                "would be written again if it were added later",
                operator=f"job '{self._job}', query '{name}', {self._comparison.saved.who}",
                kept="the savepoint, the state and all output are unchanged",
                do=f"add it, so that its target is put back; or call job.remove('{name}') before job.restore, and its "
                "output stays",
            )

    def check_removed(self, specs: Sequence[QuerySpec], memory: JobMemory, accepted: Collection[str]) -> None:
        """Refuse a query that had run before the savepoint and was not in the job when that was taken.

        The savepoint has neither its state nor where its target was; it is not one that came after it.
        """
        saved = self._comparison.saved
        for spec in specs:
            lineage, names = memory.lineage(spec.uid), self._names(spec.uid)
            begun = any(
                row.query in names and row.lineage == lineage and row.incarnation < saved.about.incarnation
                for row in memory.definitions
            )
            name = spec.sink.uid if spec.sink is not None else spec.uid
            if memory.of(spec.uid).left_out or name in accepted:
                continue
            if begun and self._comparison.saved_query(spec.uid) is None:
                raise StateError(
                    f"query '{spec.uid}' had run before the savepoint was taken, and was not in the job then: the "
                    "savepoint has neither its state nor what its target held",
                    operator=f"job '{self._job}', query '{spec.uid}', {saved.who}",
                    kept=UNCHANGED,
                    do=f"leave it out and call job.remove('{spec.uid}') before job.restore: its output stays; to "
                    f"begin it again, {RESET.replace('<query>', spec.uid)}; or, if it may write all its rows again "
                    f"beside those that are there, accept_duplicates=('{name}',)",
                )

    def fence(self, targets: Sequence[Target], incarnation: Incarnation, accepted: Collection[str]) -> None:
        """Claim, as a start does, the targets that cannot be put back and need not be: nothing may come to them now."""
        for target in targets:
            sink = target.sink
            if sink is None or sink.rolls_back or target.name in accepted:
                continue
            mark = FenceMark(incarnation.number, incarnation.start)
            claim = replace(
                self.claim(target, mark, target.lineage, incarnation.job_id),
                query_id=target.query_id,
                planned=target.planned,
                starts=incarnation.starts,
            )
            attempts(sink.options, f"the claim of sink '{claim.sink}'", reraise=True)(sink.claim, claim)

    def check(self, targets: Sequence[Target], accepted: Collection[str]) -> None:
        """Refuse targets that cannot be put back."""
        for target in targets:
            sink = target.sink
            if target.name in accepted:
                continue
            if sink is None or not sink.rolls_back:
                if target.untouched:
                    continue
                raise ConfigurationError(
                    f"what {target.described} has received since the savepoint cannot be removed, and would be "
                    "written again",
                    operator=f"job '{self._job}', query '{target.spec.uid}', {self._comparison.saved.who}",
                    kept="the savepoint, the state and all output are unchanged",
                    do="restore into another state directory, with outputs of its own; or accept duplicates there: "
                    f"accept_duplicates=('{target.name}',)",
                )
            self._comparison.check_position(target.spec.uid, target.name)
            sink.check_roll_back(self.claim(target, FenceMark(0), 0, ""), target.position)

    def claim(self, target: Target, mark: FenceMark, lineage: int, job_id: str) -> Claim:
        """The claim of a restore on a target."""
        assert target.spec.sink is not None
        return Claim(
            sink=target.spec.sink.uid,
            job=self._job,
            job_id=job_id or self._ledger.jobs()[0].job_id,
            incarnation=mark.incarnation,
            lineage=lineage,
            state=self._state,
            start=mark.start,
            restoring=True,
            siblings=target.siblings,
        )
