"""Keeps the ledger small: compacts files, checkpoints logs, and lets rows that are no longer needed expire by age.

These never expire: finished flags, the tables of jobs and definitions, final checkpoints and savepoints, the newest
checkpoints and the newest aligned one, each query's newest epoch per lineage, control events that are not settled or
from which the configuration in force follows, the newest row of each operator and sequence. Replaced data files stay
for two hours, for slow readers; log files for one.

A call does what is due until its time is used up; the next call continues. All commits are fenced like appends.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable

from spark_ext.delta import light_arrow
from spark_ext.delta.fenced_log import NO_HOOKS
from spark_ext.delta.transactions import Fence
from spark_ext.delta.where import Where, sql
from spark_ext.errors import StateError, StorageError
from spark_ext.ledger.columns import from_json
from spark_ext.ledger.ledger import FINAL
from spark_ext.ledger.schema import (
    BadRowsRow,
    CheckpointRow,
    ControlEventRow,
    ControlRequestRow,
    ControlTransitionRow,
    EpochRow,
    ExchangeRow,
    ExecutionStateRow,
    IncidentChangeRow,
    IncidentRow,
    LatencyRow,
    Row,
)
from spark_ext.ledger.tables import LedgerTable
from spark_ext.masking import logger
from spark_ext.model.control_kinds import kinds

if TYPE_CHECKING:
    from spark_ext.ledger.ledger import Ledger

log = logger("spark_ext.ledger")


@dataclass(frozen=True)
class MaintenanceSettings:
    """When what is done."""

    small_files: int = 48  # number of files from which a table is compacted into one
    sweep_every: timedelta = timedelta(minutes=30)  # per table; sweeping looks for what may be deleted
    file_retention_hours: int = 2  # how long replaced data files stay for slow readers, hours
    orphan_retention_hours: int = 168  # files that no commit names: an append that died has left them
    keep_epochs: timedelta = timedelta(days=30)  # age at which an epoch's row expires
    keep_control_events: timedelta = timedelta(days=30)  # age at which a settled control event expires
    keep_states: timedelta = timedelta(days=90)  # also exchanges, incidents, HTTP requests, bad rows
    keep_checkpoints: timedelta = timedelta(days=7)  # age at which a periodic checkpoint expires
    keep_latencies: timedelta = timedelta(days=1)  # metrics systems keep them for longer
    newest_checkpoints: int = 10  # number of periodic checkpoints that stay at any age
    budget: timedelta = timedelta(milliseconds=500)  # no further work is started after it; a piece takes some 10 ms


DEFAULTS = MaintenanceSettings()
SPARED: Final = 8  # how many times the size of all smaller files a file has at least that is not merged with them


@dataclass(frozen=True)
class Done:
    """One piece of work that was done."""

    table: str
    what: str  # `compact`, `expire`, `vacuum` or `clean log`
    count: int  # files compacted or deleted, or rows expired


def maintain(
    ledger: Ledger, now: datetime, settings: MaintenanceSettings = DEFAULTS, fence: Fence | None = None, turn: int = 0
) -> list[Done]:
    """Do what is due, as long as the budget allows.

    May run concurrently with appends of this and other processes; work that conflicts with another commit is left for
    the next call. A table that cannot be written is logged and skipped.

    Args:
        now: UTC; ages are measured from here.
        turn: which table is swept first: each in its turn, if every call is that of another process, whose time may
            be used up before the last of them.
    """
    until = time.monotonic() + settings.budget.total_seconds()
    done: list[Done] = []
    tables = list(ledger.tables.values())
    first = turn % len(tables)
    # Tables with the most files first: they cost every reader most.
    many = [table for table in tables if _file_count(table) >= settings.small_files]
    due = [table for table in tables[first:] + tables[:first] if _sweep_due(table, now, settings)]
    pieces: list[list[Callable[[], Iterable[Done]]]] = [
        [partial(compact, table, settings.small_files, fence) for table in sorted(many, key=_file_count, reverse=True)],
        [partial(_sweep, ledger, table, now, settings, fence) for table in due],
    ]
    for of_one_kind in pieces:
        for number, work in enumerate(of_one_kind):
            # One of each kind at least, so that neither keeps the other waiting forever.
            if number and time.monotonic() > until:
                break
            try:
                done += work()
            except (StorageError, StateError) as problem:
                log.warning("maintenance will continue later: %s", problem)
    return done


def _sweep_due(table: LedgerTable[Any], now: datetime, settings: MaintenanceSettings) -> bool:
    return table.version is not None and (table.swept_at is None or now - table.swept_at >= settings.sweep_every)


def _file_count(table: LedgerTable[Any]) -> int:
    try:
        with table.opened() as delta:
            return 0 if delta is None else len(delta.file_uris())
    except (StorageError, StateError):
        return 0


def compact(table: LedgerTable[Any], small_files: int, fence: Fence | None = None) -> Iterable[Done]:
    """Merge the files of a table, if there are many; anybody may, without a fence, as no row changes."""
    count = _file_count(table)
    if count < small_files:
        return

    def act(delta: DeltaTable, properties: CommitProperties) -> None:
        sizes = light_arrow.read_all(delta.get_add_actions().select(["size_bytes"]))["size_bytes"].to_pylist()
        spared = spared_from(sizes)
        delta.optimize.compact(
            target_size=None if spared is None else spared - 1,  # greater files stay
            commit_properties=properties,
            post_commithook_properties=NO_HOOKS,
        )
        # So that a new handle reads the entry of one file, not those of all replaced ones.
        delta.create_checkpoint()

    if table.change(act, fence, "compacting"):
        yield Done(table.name, "compact", count)


def spared_from(sizes: Sequence[int]) -> int | None:
    """The size from which a compaction leaves files as they are; None: it merges all of them. Pure.

    A file is written again only once all smaller ones have an eighth of its size. Otherwise each compaction of a long
    history would write all of it.
    """
    found, rest = None, sum(sizes)
    for size in sorted(sizes, reverse=True):
        rest -= size
        if size <= SPARED * rest or not rest:
            break
        found = size
    return found


def _sweep(
    ledger: Ledger, table: LedgerTable[Any], now: datetime, settings: MaintenanceSettings, fence: Fence | None
) -> Iterable[Done]:
    yield from _expire(table, _expired(ledger, table.row_type, now, settings), fence)
    yield from _vacuum(table, settings, fence)
    yield from _clean_log(table, fence)
    table.swept_at = now


def _expire(table: LedgerTable[Any], expired: list[Where], fence: Fence | None) -> Iterable[Done]:
    for where in expired:
        # A delete commits even if it finds nothing.
        if not table.read(where=where).num_rows:
            continue
        deleted: list[int] = []

        def act(
            delta: DeltaTable, properties: CommitProperties, where: Where = where, deleted: list[int] = deleted
        ) -> None:
            metrics = delta.delete(sql(where), commit_properties=properties, post_commithook_properties=NO_HOOKS)
            deleted.append(int(metrics["num_deleted_rows"] or 0))

        if table.change(act, fence, "expiring rows"):
            yield Done(table.name, "expire", deleted[0])


def _vacuum(table: LedgerTable[Any], settings: MaintenanceSettings, fence: Fence | None) -> Iterable[Done]:
    removed: list[str] = []

    def act(delta: DeltaTable, properties: CommitProperties) -> None:
        # Replaced files first; then, at a much greater age, files that no commit names. A writer may be about to commit
        # such a file, so its age has to exceed any time for which a process may be suspended.
        for full, hours in ((False, settings.file_retention_hours), (True, settings.orphan_retention_hours)):
            vacuum = partial(
                delta.vacuum,
                hours,
                enforce_retention_duration=False,
                full=full,
                commit_properties=properties,
                post_commithook_properties=NO_HOOKS,
            )
            # A vacuum makes two commits even if it finds nothing, and it counts what an earlier one has removed.
            found = [path for path in vacuum(dry_run=True) if table.log is None or (table.log.parent / path).exists()]
            if found:
                vacuum(dry_run=False)
                removed.extend(found)

    if table.change(act, fence, "removing replaced files") and removed:
        yield Done(table.name, "vacuum", len(removed))


def _clean_log(table: LedgerTable[Any], fence: Fence | None) -> Iterable[Done]:
    """Remove log files that are older than the table's property says and that a checkpoint has replaced.

    A vacuum does the same, so this finds something only where there was nothing to vacuum.
    """

    def act(delta: DeltaTable, properties: CommitProperties) -> None:
        delta.cleanup_metadata()

    before = _log_files(table)
    if table.change(act, fence, "cleaning the log") and (count := before - _log_files(table)) > 0:
        yield Done(table.name, "clean log", count)


def _log_files(table: LedgerTable[Any]) -> int:
    return 0 if table.log is None else sum(1 for _ in table.log.iterdir())


# -- what may expire --------------------------------------------------------------------------------------------------

_AGES: dict[object, str] = {  # tables whose rows expire by age alone, with the setting that is the age
    ControlRequestRow: "keep_states",
    LatencyRow: "keep_latencies",
    ExchangeRow: "keep_states",
    IncidentRow: "keep_states",
    IncidentChangeRow: "keep_states",
    BadRowsRow: "keep_states",
}


def _expired(ledger: Ledger, row_type: type[Row], now: datetime, settings: MaintenanceSettings) -> list[Where]:
    if row_type in _AGES:
        return [[("at", "<", now - getattr(settings, _AGES[row_type]))]]
    if row_type is EpochRow:
        return _old_epochs(ledger, now - settings.keep_epochs)
    if row_type is ControlEventRow:
        return _old_control_events(ledger, now - settings.keep_control_events)
    if row_type is ControlTransitionRow:
        return _old_transitions(ledger, now - settings.keep_control_events)
    if row_type is ExecutionStateRow:
        return _old_states(ledger, now - settings.keep_states)
    if row_type is CheckpointRow:
        return _old_checkpoints(ledger, now - settings.keep_checkpoints, settings.newest_checkpoints)
    return []


def _old_epochs(ledger: Ledger, limit: datetime) -> list[Where]:
    rows = ledger.table(EpochRow).read(["query", "lineage", "epoch", "committed_at"])
    newest = rows.group_by(["query", "lineage"]).aggregate([("epoch", "max"), ("committed_at", "min")])
    return [
        [
            ("query", "=", row["query"]),
            ("lineage", "=", row["lineage"]),
            ("epoch", "<", row["epoch_max"]),
            ("committed_at", "<", limit),
        ]
        for row in newest.to_pylist()
        if row["committed_at_min"] < limit
    ]


def _old_control_events(ledger: Ledger, limit: datetime) -> list[Where]:
    """Events that are settled, but for those from which the configuration in force follows.

    Their transitions go after them: an event without them would be open, and obeyed once more.
    """
    columns = ["event_id", "sequence", "kind", "target", "value", "status", "at", "delivery", "expires_at"]
    rows = ledger.table(ControlEventRow).read(columns)
    if not rows.num_rows:
        return []
    over = ledger.table(ControlTransitionRow).read(
        ["event_id", "status"], [("query", "=", ""), ("status", "in", list(FINAL))]
    )
    settled = {*over["event_id"].to_pylist(), *_with_status(rows, FINAL)["event_id"].to_pylist()}
    obeyed = {*_with_status(over, ("acknowledged",))["event_id"].to_pylist()}
    kept = _in_force(_with_status(rows, ("accepted",)).to_pylist(), obeyed) | {pc.max(rows["sequence"]).as_py()}
    newest = rows.group_by("event_id").aggregate([("at", "max"), ("sequence", "max")]).to_pylist()
    # A release that goes before its event would leave that waiting.
    newest.sort(key=lambda row: row["sequence_max"])
    return _of_events(
        row["event_id"]
        for row in newest
        if row["event_id"] in settled and row["at_max"] < limit and row["sequence_max"] not in kept
    )


def _of_events(ids: Iterable[str]) -> list[Where]:
    """Conditions for the rows of control events, some hundred in each."""
    given = list(ids)
    return [[("event_id", "in", given[start : start + 500])] for start in range(0, len(given), 500)]


def _in_force(accepted: Sequence[Mapping[str, Any]], obeyed: Collection[str]) -> set[int]:
    """The sequences of events from which the configuration in force follows; all others may be left out.

    Args:
        obeyed: ids of those that were acknowledged. Others do not end what was in force before them.
    """
    slots: dict[tuple[str, str, str], set[int]] = {}
    waiting: dict[int, tuple[tuple[str, str, str], bool]] = {}
    kept: set[int] = set()
    for row in sorted(accepted, key=lambda row: row["sequence"]):
        number, value = row["sequence"], from_json(row["value"], ControlEventRow, "value")
        if row["kind"] == "renamed":
            kept.add(number)
            was, now = f"query:{value['old']}", f"query:{value['new']}"
            moved, slots = slots, {}
            for (name, target, slot), numbers in moved.items():
                slots.setdefault((name, now if target == was else target, slot), set()).update(numbers)
            waiting = {
                one: ((name, now if target == was else target, slot), ends)
                for one, ((name, target, slot), ends) in waiting.items()
            }
        elif row["kind"] == "release":
            if value["sequence"] in waiting and not value.get("void"):
                where, ends = waiting.pop(value["sequence"])
                both = {value["sequence"], number}
                if value.get("withdrawn"):
                    kept |= both  # without the one, the other would wait again
                else:
                    slots[where] = both if ends else slots.get(where, set()) | both
        elif (kind := kinds().get(row["kind"])) is None or kind.standing:
            slot = str(value.get(kind.slot, "")) if kind is not None and kind.slot and isinstance(value, dict) else ""
            where = (kind.ends if kind is not None and kind.ends else row["kind"], row["target"], slot)
            ends = row["event_id"] in obeyed and row["expires_at"] is None
            if row["delivery"] == "aligned":
                waiting[number] = (where, ends)
            else:
                slots[where] = {number} if ends else slots.get(where, set()) | {number}
    return kept.union(waiting, *slots.values())


def _with_status(rows: pa.Table, statuses: Sequence[str]) -> pa.Table:
    return rows.filter(pc.is_in(rows["status"], pa.array(statuses)))


def _old_transitions(ledger: Ledger, limit: datetime) -> list[Where]:
    """Steps of events that have expired."""
    rows = ledger.table(ControlTransitionRow).read(["event_id"], [("at", "<", limit)])
    there = ledger.table(ControlEventRow).read(["event_id"])["event_id"]
    gone = rows.filter(pc.invert(pc.is_in(rows["event_id"], there.combine_chunks())))
    return _of_events(pc.unique(gone["event_id"]).to_pylist())


def _old_states(ledger: Ledger, limit: datetime) -> list[Where]:
    rows = ledger.table(ExecutionStateRow).read(["operator", "since"])
    newest = rows.group_by("operator").aggregate([("since", "max"), ("since", "min")])
    return [
        [("operator", "=", row["operator"]), ("since", "<", min(limit, row["since_max"]))]
        for row in newest.to_pylist()
        if row["since_min"] < min(limit, row["since_max"])
    ]


def _old_checkpoints(ledger: Ledger, limit: datetime, newest: int) -> list[Where]:
    rows = ledger.table(CheckpointRow).read(["checkpoint_id", "kind", "status"])
    if not rows.num_rows:
        return []
    completed = rows.filter(pc.and_(pc.equal(rows["kind"], "periodic"), pc.equal(rows["status"], "COMPLETED")))
    # The greatest id stays as well: the next one is one more.
    kept = {*sorted(set(completed["checkpoint_id"].to_pylist()))[-newest:]}
    kept.add(pc.max(rows["checkpoint_id"]).as_py())
    # So does the newest aligned one. Offsets may carry its barrier for as long as the job runs, and a planner waits for
    # a barrier above the newest one that it knows of.
    aligned = rows.filter(pc.equal(rows["status"], "TRIGGERED"))
    kept.add(pc.max(aligned["checkpoint_id"]).as_py() or 0)
    return [[("kind", "=", "periodic"), ("at", "<", limit), ("checkpoint_id", "not in", sorted(kept))]]
