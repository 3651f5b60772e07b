"""Restoring a job from a savepoint, in place or as another job: in steps, each a row of the ledger.

1. BEGUN: the number of the new lineage is taken, and never used again. From here on the job cannot be started.
2. CLAIMED: targets and exchanges refuse what drivers of earlier starts may still commit.
3. ROLLED BACK: each target, and the table of bad rows, holds what it held at the cut. A target's records of epochs
   stay: only the new lineage makes the numbers of epochs new.
4. EXCHANGES: each holds what was in flight; what came later is abandoned.
5. STATES: Spark's checkpoints are those of the savepoint, which were prepared before the first step; what was there is
   moved aside, into `replaced`.
6. FLAGS: what had finished by the cut has finished in the new lineage too.
7. `restored`: the new lineage is that of the job.

After a crash the restore is carried out again from the beginning, under a further number: every step may come twice.
A model in TLA+, `docs/spec/checkpoint.tla`, shows that the order of the first and the last step is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timezone
from enum import Enum
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from spark_ext.checkpoints.savepoint import Savepoint, exchange_folder, read_savepoint, retained_folder
from spark_ext.control.log import ControlLog
from spark_ext.errors import RESET, ConfigurationError, JobFailedError, SparkExtError, StateError
from spark_ext.exchange.pinned import put_back
from spark_ext.failpoints import FailPoint, reach
from spark_ext.failures.labels import Response
from spark_ext.jobs.checkpointing.retained import complete, retained
from spark_ext.jobs.composition import Composition
from spark_ext.jobs.restoring.reshaped_exchanges import ReshapedExchanges
from spark_ext.jobs.restoring.restore_checks import Comparison, saved_name
from spark_ext.jobs.restoring.restore_targets import Target, Targets, interrupted_restores
from spark_ext.jobs.restoring.restored_parts import (
    RestoredStates,
    check_inboxes,
    check_readers,
    claim_exchanges,
    clear_away,
    exchanges_in,
    put_back_bad_rows,
)
from spark_ext.jobs.restoring.restored_rows import put_back_lookups, restored_rows
from spark_ext.ledger import LedgerWriter, start_incarnation
from spark_ext.ledger.identity import job_row
from spark_ext.ledger.memory import JobMemory
from spark_ext.ledger.schema import CheckpointRow
from spark_ext.masking import logger
from spark_ext.model.commits import FenceMark
from spark_ext.model.lifecycle import State
from spark_ext.model.lineages import Restored, checkpoint_to_restore
from spark_ext.queries.context import checkpoint_of
from spark_ext.queries.spec import definition_of
from spark_ext.sinks.runtime.retry import attempts
from spark_ext.spark.backend.kinds import backend_of
from spark_ext.spark.logs.rescaled import take
from spark_ext.spark.logs.state_partitions import require_rescale
from spark_ext.storage import child, local_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_ext.exchange.descriptor import Shape
    from spark_ext.ledger import Ledger
    from spark_ext.queries.run import QueryRun
    from spark_ext.queries.spec import QuerySpec
    from spark_ext.settings import JobSettings

log = logger("spark_ext.job")

MARGIN: Final = 1_000  # entries that registrations, which are not fenced, may still append to a log that is replaced


class Step(str, Enum):
    """A step that has been taken; its value is the `reason` of its row in `jobs`."""

    __str__ = str.__str__

    BEGUN = "begun"
    CLAIMED = "claimed"
    ROLLED_BACK = "rolled back"
    EXCHANGES = "exchanges"
    STATES = "states"
    FLAGS = "flags"


def restore(
    spark: SparkSession,
    composition: Composition,
    ledger: Ledger,
    savepoint: str | Path | int,
    accept_duplicates: Collection[str],
    state_partitions: Mapping[str, int],
    shapes: Mapping[str, Shape] = MappingProxyType({}),
) -> None:
    """Restore a job; it is started afterwards, as always.

    For the arguments see `Job.restore`; `shapes` are those of exchanges that are not to be as the job declares them.
    """
    if isinstance(savepoint, int):
        savepoint = retained(composition.job, composition.state, savepoint)
    accepted = (accept_duplicates,) if isinstance(accept_duplicates, str) else accept_duplicates
    _Restore(spark, composition, ledger, str(savepoint), frozenset(accepted), state_partitions, shapes).run()


class _Restore:
    """One restore of a job. For one thread."""

    def __init__(
        self,
        spark: SparkSession,
        composition: Composition,
        ledger: Ledger,
        path: str,
        accepted: frozenset[str],
        partitions: Mapping[str, int],
        shapes: Mapping[str, Shape],
    ) -> None:
        self._spark, self._composition, self._ledger, self._path = spark, composition, ledger, path
        self._accepted, self._partitions, self._shapes = accepted, partitions, shapes
        self._job, self._state, self._operator = composition.job, composition.state, f"job '{composition.job}'"

    def run(self) -> None:
        saved = read_savepoint(self._path)
        memory = JobMemory.read(self._ledger)
        in_place = any(row.job_id == saved.about.job_id for row in self._ledger.jobs())
        if not in_place and self._has_past(memory):
            raise StateError(
                f"the savepoint is of job '{saved.about.job}' with another state directory, and this one has a history "
                "of its own",
                operator=f"{self._operator}, {saved.who}",
                kept="the savepoint, the state and all output are unchanged",
                do="restore into an empty state directory",
            )
        comparison = self._compared(saved, memory, in_place=in_place)
        comparison.check_start([row.start_id for row in self._ledger.jobs()])
        comparison.check()
        self._check_options(comparison)
        targets = Targets(self._job, self._state, self._ledger, comparison)
        wrote = self._that_wrote(memory) if in_place else ()
        for spec in wrote:
            take(checkpoint_of(self._state, spec.uid))  # what is read of a query's past may still be beside its place
        found = targets.find(wrote, memory)
        targets.check(found, self._accepted)
        if in_place:
            targets.check_left_out(wrote, memory)
            targets.check_removed(wrote, memory, self._accepted)
        tuple(exchanges_in(self._state, self._operator))
        check_readers(comparison, self._composition, self._specs, late=bool(self._waiting))
        check_inboxes(comparison, self._specs)
        reshaped = ReshapedExchanges(comparison, self._composition, self._specs, self._shapes)
        if in_place and local_path(self._state) is None:
            raise StateError(
                "the state directory is on an object store, where nothing can be moved aside",
                operator=self._operator,
                kept="the savepoint, the state and all output are unchanged",
                do="restore into another state directory, with outputs of its own",
            )
        incarnation = start_incarnation(
            self._ledger,
            self._job,
            jvm_pid=backend_of(self._spark).jvm_pid(self._spark),
            application_id=backend_of(self._spark).application_id(self._spark),
            for_restore=True,
        )
        writer = LedgerWriter(self._ledger, incarnation)
        try:
            lineage = max(saved.about.lineage, *(row.lineage for row in self._ledger.jobs())) + 1
            states = RestoredStates(comparison, self._state, incarnation.number, memory.lineages)
            try:
                states.discard()
                reshaped.write(self._spark, states.folder, incarnation.number)
                states.prepare(self._spark, self._partitions, reshaped)
                targets.fence(found, incarnation, self._accepted)
                # An older driver may have committed until now.
                memory = JobMemory.read(self._ledger)
                found = targets.find(wrote, memory)
                targets.check(found, self._accepted)
                left_out = targets.left_out(wrote, memory) if in_place else ()
                self._carry_out(comparison, states, reshaped, targets, found, left_out, writer, lineage)
            finally:
                states.discard()
        finally:
            writer.end("restore")

    def _has_past(self, memory: JobMemory) -> bool:
        """Whether the state directory has a history, other than that of restores that were interrupted."""
        interrupted = interrupted_restores(self._ledger)
        tables = (memory.epochs["lineage"], memory.finished["lineage"])
        found = {lineage for table in tables for lineage in table.unique().to_pylist()}
        return not {*found, *(row.lineage for row in memory.definitions)} <= interrupted

    # -- before anything is changed -----------------------------------------------------------------------------------

    def _compared(self, saved: Savepoint, memory: JobMemory, *, in_place: bool) -> Comparison:
        composition = self._composition
        specs, waiting = list(composition.specs), []
        finished = {name for name, part in saved.metadata.queries.items() if part.finished}
        queries = {*composition.uids, *(uid for gate in composition.gates for uid in gate.after)}
        names = {uid: saved_name(uid, saved, composition.declared) for uid in queries}
        for gate in composition.gates:
            if {names[uid] for uid in gate.after} <= finished and names[gate.uid] in saved.definitions:
                specs.append(composition.build(gate, specs, composition.stored_configuration()))
            else:
                waiting.append(gate)
        given = {spec.uid: definition_of(spec) for spec in specs}
        self._specs, self._waiting = tuple(specs), tuple(waiting)
        left = finished - {names[uid] for uid in composition.uids}
        sealed = frozenset(name for name, part in saved.metadata.exchanges.items() if part.sealed)
        graph = composition.graph(specs, waiting, left, sealed)
        late = frozenset(gate.uid for gate in waiting)
        return Comparison(self._job, saved, given, late, graph, composition.declared, in_place, self._accepted)

    def _that_wrote(self, memory: JobMemory) -> tuple[QuerySpec, ...]:
        """The queries of the job, and of those that wait for others as of the savepoint those that have begun since."""
        found = list(self._specs)
        for gate in self._waiting:
            former = self._composition.declared.renamed.get(gate.uid, gate.uid)
            if not (memory.knows(gate.uid) or memory.knows(former)):
                continue
            try:
                found.append(self._composition.build(gate, found, self._composition.stored_configuration()))
            except SparkExtError:
                raise
            except Exception as problem:
                raise StateError(
                    f"query '{gate.uid}' has begun since the savepoint, and cannot be built now, so that what "
                    f"it has written cannot be put back: {problem}",
                    operator=f"{self._operator}, query '{gate.uid}'",
                    kept="the savepoint, the state and all output are unchanged",
                    do="restore the tables that its function reads, or correct the function",
                ) from problem
        return tuple(found)

    def _check_options(self, comparison: Comparison) -> None:
        if self._partitions:
            require_rescale(self._spark, self._operator)
        for query, number in self._partitions.items():
            part = comparison.saved_query(query)
            if part is None or part.finished or part.epoch is None or number < 1:
                if number < 1:
                    what = f"state_partitions asks for {number} partitions of query '{query}'; at least 1 is needed"
                else:
                    why = "is not" if part is None else "has finished" if part.finished else "has committed no epoch"
                    what = f"state_partitions names query '{query}', which {why} in the savepoint"
                raise ConfigurationError(
                    what,
                    operator=f"{self._operator}, {comparison.saved.who}",
                    kept="the savepoint, the state and all output are unchanged",
                    do="name a query that was running, and a number from 1",
                )
        known = {spec.sink.uid if spec.sink is not None else spec.uid for spec in self._specs}
        for uid in sorted(self._accepted - known):
            raise ConfigurationError(
                f"accept_duplicates names '{uid}', which is no sink of this job; its sinks are: "
                f"{', '.join(sorted(known))}",
                operator=f"{self._operator}, {comparison.saved.who}",
                kept="the savepoint, the state and all output are unchanged",
                do="correct the uid",
            )

    # -- the steps ----------------------------------------------------------------------------------------------------

    def _carry_out(
        self,
        comparison: Comparison,
        states: RestoredStates,
        reshaped: ReshapedExchanges,
        targets: Targets,
        found: tuple[Target, ...],
        left_out: tuple[str, ...],
        writer: LedgerWriter,
        lineage: int,
    ) -> None:
        saved, incarnation = comparison.saved, writer.incarnation
        self._taken(Step.BEGUN, writer, lineage, saved)
        reach(FailPoint.RESTORE_BEGUN)
        mark = FenceMark(incarnation.number, incarnation.start)
        claims, rolled_back = [], set()
        for target in found:
            sink = target.sink
            if sink is not None:
                claim = targets.claim(target, mark, lineage, incarnation.job_id)
                attempts(sink.options, f"the claim of sink '{claim.sink}'", reraise=True)(sink.claim, claim)
                claims.append((target, sink, claim))
        interrupted = interrupted_restores(self._ledger)
        last = claim_exchanges(self._state, interrupted, mark, incarnation.job_id, self._operator)
        self._taken(Step.CLAIMED, writer, lineage, saved)
        reach(FailPoint.RESTORE_CLAIMED)
        for target, sink, claim in claims:
            if target.name in self._accepted or not sink.rolls_back:
                continue
            sink.check_roll_back(claim, target.position)
            what = f"the roll back of sink '{claim.sink}'"
            attempts(sink.options, what, reraise=True)(sink.roll_back, claim, target.position)
            rolled_back.add(target.name)
        sinks = {target.spec.uid: target.lineage for target in found}
        put_back_bad_rows(comparison, self._ledger, incarnation.job_id, self._specs, lineage, sinks, rolled_back)
        self._taken(Step.ROLLED_BACK, writer, lineage, saved)
        reach(FailPoint.RESTORE_ROLLED_BACK)
        backend_of(self._spark).settle_state(self._spark, self._state)
        clear_away(self._state, lineage, again=bool(interrupted - {lineage}))
        reach(FailPoint.RESTORE_MOVED_ASIDE)
        self._put_exchanges(comparison, states.folder, reshaped, last, lineage, incarnation.job_id)
        self._taken(Step.EXCHANGES, writer, lineage, saved)
        reach(FailPoint.RESTORE_EXCHANGES)
        states.put()
        self._taken(Step.STATES, writer, lineage, saved)
        reach(FailPoint.RESTORE_STATES)
        writer.append(restored_rows(comparison, self._ledger, incarnation, lineage))
        at = datetime.now(timezone.utc)
        writer.append([job_row(incarnation, "left_out", at, lineage=lineage, query=query) for query in left_out])
        writer.append([job_row(incarnation, "rescaled", at, lineage=lineage, reason=one.described) for one in reshaped])
        self._taken(Step.FLAGS, writer, lineage, saved)
        reach(FailPoint.RESTORE_FLAGS)
        put_back_lookups(comparison, ControlLog(self._ledger, incarnation.fence))
        renamed = {query: name for query, name in comparison.names.items() if query != name}
        writer.restored(lineage, saved.about.lineage, saved.folder, renamed)
        reach(FailPoint.RESTORE_COMPLETE)

    def _taken(self, step: Step, writer: LedgerWriter, lineage: int, saved: Savepoint) -> None:
        at = datetime.now(timezone.utc)
        writer.append(
            job_row(
                writer.incarnation,
                "restoring",
                at,
                lineage=lineage,
                reason=step.value,
                parent=saved.about.lineage,
                savepoint=saved.folder,
            )
        )

    def _put_exchanges(
        self,
        comparison: Comparison,
        drafts: str,
        reshaped: ReshapedExchanges,
        last: Mapping[str, int],
        lineage: int,
        job_id: str,
    ) -> None:
        graph = comparison.graph
        read = (reader.exchange for spec in self._specs for reader in self._composition.reads(spec))
        late = (name for name, made in self._composition.exchanges.items() if made.readers)
        used = {*graph.exchanges, *read, *late}
        for name, part in comparison.saved.metadata.exchanges.items():
            if name not in used:
                continue  # nobody in this job writes or reads it
            made = self._composition.exchanges.get(name)
            changed = reshaped.get(name)
            folder = comparison.saved.folder if changed is None else drafts
            put_back(
                child(folder, exchange_folder(name)),
                f"{self._state}/exchanges/{name}",
                number=max(last.get(name, -1) + MARGIN, part.end if changed is None else changed.end),
                lineage=lineage,
                job_id=job_id,
                who=f"{self._operator}, exchange '{name}'",
                given=None if made is None else (made.kind, made.options),
            )


# -- a job whose state is damaged -------------------------------------------------------------------------------------


def restore_after(
    job: str,
    settings: JobSettings,
    ledger: Ledger,
    runs: Callable[[], Sequence[QueryRun]],
    restore: Callable[[int], object],
    failure: JobFailedError,
) -> None:
    """Restore a job that has failed, if its settings say so and its state is damaged."""
    responses = [run.response for run in runs() if run.state is State.FAILED]
    damaged = bool(responses) and all(response is Response.RESTORE for response in responses)
    if settings.on_damage != "restore" or not damaged:
        raise failure
    number, why_not = remedy(ledger.uri, ledger)
    if number is None:
        raise JobFailedError(
            f"{failure.what}; the job does not restore itself: {why_not}",
            operator=failure.operator,
            kept=failure.kept,
            do="restore it from an older checkpoint or a savepoint with Job.restore(); without one, discard the "
            f"query's history with {RESET}",
            cause_text=str(failure),
        ) from failure
    log.warning("job '%s': %s; it is restored from checkpoint %d", job, failure.what, number)
    try:
        restore(number)
    except SparkExtError as problem:
        raise JobFailedError(
            f"{failure.what}; the restore from checkpoint {number} failed: {problem.what}",
            operator=failure.operator,
            kept=problem.kept,
            do=problem.do,
            cause_text=f"{failure}\n\n{problem}",
        ) from problem


def remedy(state: str, ledger: Ledger) -> tuple[int | None, str]:
    """The number of the checkpoint from which a job whose state is damaged can be restored; or None, and why not."""
    kept = complete(state)
    # Without the metadata, which is large.
    rows = ledger.table(CheckpointRow).read(
        ["checkpoint_id", "lineage"], [("query", "=", ""), ("status", "=", "COMPLETED")]
    )
    lineages = {row["checkpoint_id"]: row["lineage"] for row in rows.to_pylist() if row["checkpoint_id"] in kept}
    jobs, root = ledger.jobs(), PurePosixPath(retained_folder(state))
    restores = []
    for row in jobs:
        if row.event == "restored":
            folder = PurePosixPath(row.savepoint or "")
            number = int(folder.name) if folder.parent == root and folder.name.isdigit() else None
            restores.append(Restored(row.lineage, row.parent, number))
    return checkpoint_to_restore(lineages, max(row.lineage for row in jobs), restores)
