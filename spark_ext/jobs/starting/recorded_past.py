"""What a start of a job does about its past: read it once, refuse what cannot continue, write down what has changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from typing import TYPE_CHECKING, NamedTuple

from spark_ext.errors import StateError
from spark_ext.failpoints import FailPoint, reach
from spark_ext.jobs.composition import ChangeDeclarations, Gate
from spark_ext.jobs.starting.identity import Logged, Notice, Start, refuse_unknown, renames, to_record
from spark_ext.ledger.memory import JobMemory
from spark_ext.ledger.schema import ControlEventRow, DefinitionRow
from spark_ext.model.query_offsets import source_offsets
from spark_ext.queries import operators
from spark_ext.queries.context import checkpoint_of
from spark_ext.queries.early import with_early
from spark_ext.queries.spec import definition_of
from spark_ext.sinks.runtime import position
from spark_ext.spark.logs.checkpoint_directory import put_in_place
from spark_ext.spark.logs.rescaled import complete as complete_rescale
from spark_ext.spark.logs.rescaled import is_interrupted
from spark_ext.spark.logs.spark_log import SparkLog
from spark_ext.spark.logs.state_operators import relocate
from spark_ext.storage import local_path, move

if TYPE_CHECKING:
    from spark_ext.ledger import Incarnation, Ledger, LedgerWriter
    from spark_ext.ledger.incarnation import NextStart
    from spark_ext.model.definitions import QueryDefinition
    from spark_ext.queries.spec import QuerySpec


class RecordedState(NamedTuple):
    """The past of a job that may start."""

    memory: JobMemory
    notices: tuple[Notice, ...] = ()
    elsewhere: frozenset[str] = frozenset()  # queries whose sinks write to another target from now on, on request
    definitions: tuple[
        DefinitionRow, ...
    ] = ()  # recorded when all targets are claimed: a refused start changes nothing


def recall(start: Start, writer: LedgerWriter) -> RecordedState:
    """Refuse what cannot continue, before anything is claimed, and write down what has changed.

    Facts are written to the ledger first, and what follows from them (a moved folder) is done, or done again, by the
    next start.
    """
    after, given, state = start.memory, start.given, writer.ledger.uri
    notices = start.check()
    for query, old in start.renames.items():
        writer.renamed(query, old, after.lineage(query))
        reach(FailPoint.QUERY_RENAMED)
    for query in given:
        _move(state, after, query)
        # After a rename, and when the state directory was moved or copied; also what a start that died has left.
        relocate(checkpoint_of(state, query))
    for query in sorted(start.declared.removed & after.names):
        if not after.of(query).removed:
            writer.removed(query, after.lineage(query))
    number = writer.incarnation.number
    rows = tuple(
        _definition(query, after.lineage(query), number, one) for query, one in given.items() if to_record(start, query)
    )
    return RecordedState(after, notices, start.exchanged(), rows)


def check_past(start: Start) -> None:
    """Refuse what `recall` refuses, and what it would have to write down; for what is done between two runs."""
    start.check()
    for query, old in start.renames.items():
        raise StateError(
            f"query '{query}' was '{old}' in the last start",
            operator=f"job '{start.job}', query '{query}'",
            kept="nothing was changed",
            do="start the job once under the new name, and stop it",
        )


def compared(
    job: str,
    memory: JobMemory,
    ledger: Ledger,
    specs: Sequence[QuerySpec],
    declared: ChangeDeclarations,
    incarnation: Incarnation | NextStart,
    gates: Sequence[Gate],
    *,
    early: bool = False,
) -> Start:
    """The job beside its past. What an interrupted rescale has left is completed before; see `complete_rescales`."""
    given = {spec.uid: definition_of(spec) for spec in specs}
    waiting = frozenset(gate.uid for gate in gates)
    refuse_unknown(job, memory, declared)
    after, to_do = with_renames(job, memory, (*given, *waiting), declared, incarnation.number)
    for spec in specs:
        known = after.of(spec.uid)
        if not known.finished:
            before, accepted = known.definition, declared.accepted.get(spec.uid, ())
            given[spec.uid] = with_early(given[spec.uid], spec, before, job, accepted, early=early)
    logs = {
        query: _logged(ledger.uri, after, query) for query in {*given, *after.names} if not after.of(query).finished
    }
    _refuse_lost_events(ledger, logs)
    moving = frozenset(
        f"{spec.sink.uid}.{name}"
        for spec in specs
        if spec.sink is not None
        for name in operators.moving_fields(spec.sink.format)
    )
    return Start(job, after, given, logs, declared, moving, incarnation.older, waiting, to_do)


def complete_rescales(state: str, memory: JobMemory, queries: Iterable[str]) -> None:
    """Complete rescales that were interrupted, of queries under all names that they have had."""
    for _, checkpoint in _checkpoints(state, memory, queries):
        complete_rescale(checkpoint)


def refuse_half_rescaled(job: str, state: str, memory: JobMemory, queries: Iterable[str]) -> None:
    """Refuse what `complete_rescales` would have to complete, where nothing may be written."""
    for query, checkpoint in _checkpoints(state, memory, queries):
        if is_interrupted(checkpoint):
            raise StateError(
                "a rescale of this query was interrupted: the next start completes it, and until then its checkpoint "
                "directory is not in its place",
                operator=f"job '{job}', query '{query}'",
                kept="nothing was changed",
                do="start the job once, or repeat the rescale",
            )


def _checkpoints(state: str, memory: JobMemory, queries: Iterable[str]) -> Iterator[tuple[str, str]]:
    for query in sorted({*queries, *memory.names}):
        # Also under a name that it has no more: its checkpoint is moved from there.
        for name in memory.lineages.names(query, memory.lineage(query)):
            yield query, checkpoint_of(state, name)


def with_renames(
    job: str, memory: JobMemory, queries: Iterable[str], declared: ChangeDeclarations, number: int
) -> tuple[JobMemory, dict[str, str]]:
    """The memory once all queries have the names that the user gives them; and the renames still to be recorded."""
    to_do = renames(job, memory, queries, declared)
    for query, old in to_do.items():
        memory = memory.with_renamed(query, old, number)
    return memory, to_do


def recall_late(
    job: str, memory: JobMemory, spec: QuerySpec, others: Sequence[QuerySpec], number: int, *, early: bool
) -> DefinitionRow:
    """Compare a query that comes to a running job with its past; returns what to record when its target is claimed."""
    given = {one.uid: definition_of(one) for one in (*others, spec)}
    given[spec.uid] = with_early(given[spec.uid], spec, None, job, early=early)
    Start(job, memory, given, {}, ChangeDeclarations()).check_late(spec.uid)
    return _definition(spec.uid, memory.lineage(spec.uid), number, given[spec.uid])


def _definition(query: str, lineage: int, number: int, one: QueryDefinition) -> DefinitionRow:
    at = datetime.now(timezone.utc)
    return DefinitionRow(query=query, lineage=lineage, incarnation=number, at=at, definition=one.to_json())


def _found(state: str, memory: JobMemory, query: str) -> str:
    """Where a query's checkpoint is now: under its name, or still under a former one."""
    own = checkpoint_of(state, query)
    if SparkLog(own).exists():
        return own
    for old in memory.lineages.names(query, memory.lineage(query))[1:]:
        # A query that has taken over the name owns the directory; it has run, so this one was moved before.
        if not memory.knows(old) and SparkLog(checkpoint_of(state, old)).exists():
            return checkpoint_of(state, old)
    return own


def _logged(state: str, memory: JobMemory, query: str) -> Logged:
    place = _found(state, memory, query)
    log = SparkLog(place)
    planned, committed = log.newest_offsets(), log.newest_commit()
    offsets = None if planned is None else log.offsets(planned)
    control = 0 if offsets is None else max((one.control for one in source_offsets(offsets).values()), default=0)
    first, last = (-1 if epoch is None else epoch for epoch in (planned, committed))
    return Logged(place, log.query_id(), first, last, control, state=bool(log.numbers("state")))


def _refuse_lost_events(ledger: Ledger, logs: Mapping[str, Logged]) -> None:
    """Refuse when somebody has obeyed an event that the ledger does not have: later ones would not be obeyed."""
    newest = ledger.newest_control_sequence()
    obeyed = {f"epoch {log.planned} of query '{query}'": log.control for query, log in sorted(logs.items())}
    obeyed["a row of control_transitions"] = ledger.newest_transition()
    for where, sequence in obeyed.items():
        if sequence > newest:
            raise StateError(
                f"{where} relies on control event {sequence}, and the newest one in the ledger is {newest}: events "
                "were lost, and what they set would stay in force without an end",
                operator=ledger.table(ControlEventRow).errors.operator,
                kept="the state and all output are unchanged; nothing was started",
                do="put the newest copy of this table back; to start over, delete the whole state directory and the "
                "job's output",
            )


def _move(state: str, memory: JobMemory, query: str) -> None:
    there, own = _found(state, memory, query), checkpoint_of(state, query)
    if there == own:
        return
    source, target = local_path(there), local_path(own)
    if source is None or target is None:
        raise StateError(
            "the checkpoint directory of a renamed query is on an object store, where the job cannot move it",
            operator=f"query '{query}'",
            kept="the rename is recorded in the ledger; all output is unchanged",
            do=f"move {there}, and {position.NAME} beside it, to {own.removesuffix('/checkpoint')}, and start the job "
            "again",
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    # Last the checkpoint: while it is in its old place, the next start does both again.
    with suppress(FileNotFoundError):
        move(source.parent / position.NAME, target.parent / position.NAME)
    put_in_place(source, target)
