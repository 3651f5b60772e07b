"""The targets that a restore in place puts back: where each was at the cut, and whether it can be put there again."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from spark_ext.errors import ConfigurationError
from spark_ext.jobs.composition import SINK
from spark_ext.jobs.memory import checkpoint_of
from spark_ext.model.commits import Claim, Epoch, FenceMark
from spark_ext.queries import operators
from spark_ext.spark.spark_log import SparkLog

if TYPE_CHECKING:
    from spark_ext.jobs.restore_checks import Comparison
    from spark_ext.ledger import Ledger
    from spark_ext.ledger.memory import JobMemory
    from spark_ext.queries.spec import QuerySpec
    from spark_ext.sinks.contract import TwoPhaseCommitSink

REPLACED: Final = "replaced"
"""The folder of a state directory into which a restore moves what it replaces."""


def interrupted_restores(ledger: Ledger) -> set[int]:
    """The lineages of the restores that have begun since the last one that was completed."""
    found: set[int] = set()
    for row in sorted(ledger.jobs(), key=lambda row: (row.incarnation, row.at)):
        if row.event == "restored":
            found = set()
        elif row.event == "restoring":
            found.add(row.lineage)
    return found


@dataclass(frozen=True)
class Target:
    """The target of a query of the job, which a restore in place puts back."""

    spec: QuerySpec
    position: Any
    """Where it was at the cut."""
    untouched: bool
    """Whether nothing can have been committed to it since."""

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
    """The targets of a job that is restored in place.

    Args:
        job: its name.
        state: its state directory.
        ledger: its ledger.
        comparison: it and the savepoint.
    """

    def __init__(self, job: str, state: str, ledger: Ledger, comparison: Comparison) -> None:
        self._job, self._state, self._ledger, self._comparison = job, state, ledger, comparison

    def find(self, specs: Sequence[QuerySpec], memory: JobMemory) -> tuple[Target, ...]:
        """The target of each query; exchanges are not among them."""
        there = (spec for spec in specs if spec.sink is None or spec.sink.format.lower() != SINK)
        return tuple(self._target(spec, memory.of(spec.uid).lineage) for spec in there)

    def _target(self, spec: QuerySpec, lineage: int) -> Target:
        part, sink = self._comparison.saved_query(spec.uid), spec.sink
        log = SparkLog(self._former(spec.uid))
        query_id, planned = log.query_id(), log.newest_offsets()
        if part is None or part.epoch is None:
            untouched = query_id is None
        else:
            same = query_id == part.query_id and lineage <= self._comparison.saved.about.lineage
            untouched = same and (planned is None or planned <= part.epoch)
        position = None
        if part is not None and sink is not None and sink.uid in part.sinks:
            position = part.sinks[sink.uid].position
        elif sink is not None and not untouched:
            # The query came after the savepoint: all that it has written is taken away.
            number = self._ledger.newest_incarnation() or 0
            whole = Epoch(sink.uid, lineage, query_id or "", -1, number)
            position = operators.sink(sink.format, sink.options).position(whole)
        return Target(spec, position, untouched)

    def _former(self, query: str) -> str:
        """The query's checkpoint as it was before any restore that is not complete."""
        for lineage in sorted(interrupted_restores(self._ledger)):
            place = checkpoint_of(f"{self._state}/{REPLACED}/{lineage}", query)
            if SparkLog(place).exists():
                return place
        return checkpoint_of(self._state, query)

    def check(self, targets: Sequence[Target], accepted: Collection[str]) -> None:
        """Refuse targets that cannot be put back.

        Args:
            targets: of the job.
            accepted: names of those that may keep what they received after the savepoint, and get it again.

        Raises:
            ConfigurationError: one is of a kind that cannot.
            StateError: one is not what it was.
        """
        for target in targets:
            if target.untouched or target.name in accepted:
                continue
            sink = target.sink
            if sink is None or not sink.rolls_back:
                raise ConfigurationError(
                    f"what {target.described} has received since the savepoint cannot be removed, and would be "
                    "written again",
                    operator=f"job '{self._job}', query '{target.spec.uid}', {self._comparison.saved.who}",
                    kept="the savepoint, the state and all output are unchanged",
                    do="restore into another state directory, with outputs of its own; or accept duplicates there: "
                    f"accept_duplicates=('{target.name}',)",
                )
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
        )
