"""Named points in the protocols at which a test can kill or freeze the process. Off unless enabled by the environment.

`SPARK_EXT_FAILPOINTS="sink.committed=kill;final.flagged=kill#2"` kills the process with SIGKILL the first time it
reaches `sink.committed`, and the second time it reaches `final.flagged`. Actions:

- `kill`: SIGKILL to this process; `kill-driver`: SIGKILL to the driver's Python process (from a worker);
- `raise`: an OSError, once;
- `wait:FILE`: create `FILE.waiting`, then block until FILE exists.

`FailPoint` lists the points of this package; your own connector uses names with another first part. The idea comes from
the fail points of FreeBSD and TiKV. Without the variable a point costs one comparison.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from enum import Enum
from pathlib import Path
from typing import Final

VARIABLE = "SPARK_EXT_FAILPOINTS"
DRIVER_PID = "SPARK_EXT_DRIVER_PID"
ONCE_DIR = "SPARK_EXT_FAILPOINTS_ONCE"  # a directory: a point acts once in all processes that share it, not in each


class FailPoint(str, Enum):
    """The points of this package, `area.step`; those with `before` come just before the step takes effect."""

    __str__ = str.__str__

    # A start of the job.
    INCARNATION_TAKEN = "incarnation.taken"
    QUERY_RENAMED = "query.renamed"
    SINK_CLAIMED = "sink.claimed"

    # An epoch, whatever its source and sink.
    SOURCE_PLANNED = "source.planned"
    SOURCE_STAMPED = "source.stamped"
    SOURCE_READ = "source.read"
    SINK_WRITTEN = "sink.written"
    SINK_BEFORE_COMMIT = "sink.before_commit"
    SINK_COMMITTED = "sink.committed"

    # Bad rows of sources and sinks; kept and decided are those of sinks. What was counted by rule is left.
    BAD_ROWS_BEFORE_FILE = "bad_rows.before_file"
    BAD_ROWS_FILE = "bad_rows.file"
    BAD_ROWS_BEFORE_KEPT = "bad_rows.before_kept"
    BAD_ROWS_KEPT = "bad_rows.kept"
    BAD_ROWS_DECIDED = "bad_rows.decided"
    BAD_ROWS_BEFORE_COMMIT = "bad_rows.before_commit"
    BAD_ROWS_COMMITTED = "bad_rows.committed"
    BAD_ROWS_DELETED = "bad_rows.deleted"
    RULES_COUNTED = "rules.counted"

    # The end of input, of a source beside others too, and the final checkpoint.
    END_OF_INPUT_PLANNED = "end_of_input.planned"
    SOURCE_BEFORE_END_OF_INPUT = "source.before_end_of_input"
    SOURCE_BEFORE_FLAGGED = "source.before_flagged"
    SOURCE_BEFORE_ACKNOWLEDGED = "source.before_acknowledged"
    SOURCE_BEFORE_CLOSE = "source.before_close"
    SOURCE_BEFORE_CLOSED = "source.before_closed"
    SOURCE_CLOSED = "source.closed"
    HYBRID_BEFORE_SWITCH = "hybrid.before_switch"
    FINAL_BEFORE_END_OF_INPUT = "final.before_end_of_input"
    FINAL_BEFORE_COMPLETED = "final.before_completed"
    FINAL_COMPLETED = "final.completed"
    FINAL_BEFORE_FLAGGED = "final.before_flagged"
    FINAL_FLAGGED = "final.flagged"
    FINAL_BEFORE_ACKNOWLEDGED = "final.before_acknowledged"
    FINAL_ACKNOWLEDGED = "final.acknowledged"
    FINAL_BEFORE_CLOSED = "final.before_closed"
    FINAL_STOPPED = "final.stopped"
    FINAL_CLOSED = "final.closed"
    JOB_ENDED = "job.ended"

    # The end of a run that ends with what is there.
    CAUGHT_UP = "until.caught_up"
    SUSPENDED = "until.suspended"

    # Rows of open windows that a run shows at its end.
    EARLY_COPIED = "early.copied"
    EARLY_BEFORE_COMMIT = "early.before_commit"
    EARLY_COMMITTED = "early.committed"
    EARLY_SHOWN = "early.shown"

    # An append to a table of the ledger.
    LEDGER_BEFORE_JOBS = "ledger.jobs.before"
    LEDGER_JOBS = "ledger.jobs.after"
    LEDGER_BEFORE_DEFINITIONS = "ledger.definitions.before"
    LEDGER_DEFINITIONS = "ledger.definitions.after"
    LEDGER_BEFORE_CHECKPOINTS = "ledger.checkpoints.before"
    LEDGER_CHECKPOINTS = "ledger.checkpoints.after"
    LEDGER_BEFORE_FINISHED = "ledger.finished.before"
    LEDGER_FINISHED = "ledger.finished.after"
    LEDGER_BEFORE_EPOCHS = "ledger.epochs.before"
    LEDGER_EPOCHS = "ledger.epochs.after"
    LEDGER_BEFORE_CONTROL_EVENTS = "ledger.control_events.before"
    LEDGER_CONTROL_EVENTS = "ledger.control_events.after"
    LEDGER_BEFORE_CONTROL_TRANSITIONS = "ledger.control_transitions.before"
    LEDGER_CONTROL_TRANSITIONS = "ledger.control_transitions.after"
    LEDGER_BEFORE_CONTROL_REQUESTS = "ledger.control_requests.before"
    LEDGER_CONTROL_REQUESTS = "ledger.control_requests.after"
    LEDGER_BEFORE_EXECUTION_STATES = "ledger.execution_states.before"
    LEDGER_EXECUTION_STATES = "ledger.execution_states.after"
    LEDGER_BEFORE_LATENCIES = "ledger.latencies.before"
    LEDGER_LATENCIES = "ledger.latencies.after"
    LEDGER_BEFORE_EXCHANGES = "ledger.exchanges.before"
    LEDGER_EXCHANGES = "ledger.exchanges.after"
    LEDGER_BEFORE_INCIDENTS = "ledger.incidents.before"
    LEDGER_INCIDENTS = "ledger.incidents.after"
    LEDGER_BEFORE_INCIDENT_CHANGES = "ledger.incident_changes.before"
    LEDGER_INCIDENT_CHANGES = "ledger.incident_changes.after"
    LEDGER_BEFORE_BAD_ROWS = "ledger.bad_rows.before"
    LEDGER_BAD_ROWS = "ledger.bad_rows.after"

    # control events
    CONTROL_BEFORE_STAMP = "control.before_stamp"
    CONTROL_STAMPED = "control.stamped"
    CONTROL_BEFORE_COLLECT = "control.before_collect"
    CONTROL_COLLECTED = "control.collected"
    QUERY_HELD = "query.held"
    QUERY_STOPPED = "query.stopped"
    QUERY_BEFORE_RELEASE = "query.before_release"

    # delta_2pc, and the outbox of http_2pc.
    DELTA_BEFORE_FENCE = "delta.before_fence"
    DELTA_FENCED = "delta.fenced"
    DELTA_CLEANED = "delta.cleaned"
    DELTA_BEFORE_CREATE = "delta.before_create"
    DELTA_BEFORE_COLUMNS = "delta.before_columns"
    DELTA_BEFORE_COMMIT = "delta.before_commit"
    DELTA_COMMITTED = "delta.committed"
    DELTA_BEFORE_OPTIMIZE = "delta.before_optimize"
    DELTA_OPTIMIZED = "delta.optimized"
    DELTA_BEFORE_ROLLBACK = "delta.before_rollback"
    DELTA_ROLLED_BACK = "delta.rolled_back"

    # inboxes
    INBOX_BEFORE_SYNC = "inbox.before_sync"
    INBOX_BEFORE_RELEASE = "inbox.before_release"

    # exchanges
    EXCHANGE_BEFORE_CLAIM = "exchange.before_claim"
    EXCHANGE_CLAIMED = "exchange.claimed"
    EXCHANGE_CLEANED = "exchange.cleaned"
    EXCHANGE_BEFORE_ENTRY = "exchange.before_entry"
    EXCHANGE_ENTRY = "exchange.entry"
    EXCHANGE_BEFORE_SEAL = "exchange.before_seal"
    EXCHANGE_SEALED = "exchange.sealed"
    EXCHANGE_BEFORE_RELEASE = "exchange.before_release"
    EXCHANGE_RELEASED = "exchange.released"
    EXCHANGE_BEFORE_DELETING = "exchange.before_deleting"
    EXCHANGE_DELETED = "exchange.deleted"
    EXCHANGE_BEFORE_PIN = "exchange.before_pin"
    EXCHANGE_SENT = "exchange.sent"
    EXCHANGE_SEGMENT_KEPT = "exchange.segment_kept"
    EXCHANGE_BEFORE_SEED = "exchange.before_seed"
    EXCHANGE_PINNED = "exchange.pinned"
    EXCHANGE_BEFORE_PUT_BACK = "exchange.before_put_back"
    EXCHANGE_PUT_BACK = "exchange.put_back"

    # inboxes
    INGEST_BEFORE_CLAIM = "ingest.before_claim"
    INGEST_CLAIMED = "ingest.claimed"
    INGEST_BEFORE_SYNC = "ingest.before_sync"
    INGEST_SYNCED = "ingest.synced"
    INGEST_BEFORE_SEGMENT = "ingest.before_segment"
    INGEST_BEFORE_ENTRY = "ingest.before_entry"
    INGEST_ENTRY = "ingest.entry"
    INGEST_BEFORE_DELETING = "ingest.before_deleting"
    INGEST_DELETED = "ingest.deleted"
    INGEST_BEFORE_SEAL = "ingest.before_seal"
    INGEST_SEALED = "ingest.sealed"

    # savepoints, restores and rescales
    SAVEPOINT_BEFORE_QUERY = "savepoint.before_query"
    SAVEPOINT_PINNED = "savepoint.pinned"
    SAVEPOINT_BEFORE_MANIFEST = "savepoint.before_manifest"
    SAVEPOINT_SEALED = "savepoint.sealed"
    CHECKPOINT_TRIGGERED = "checkpoint.triggered"
    CHECKPOINT_CUT = "checkpoint.cut"
    CHECKPOINT_RECORDED = "checkpoint.recorded"
    RESTORE_BEGUN = "restore.begun"
    RESTORE_CLAIMED = "restore.claimed"
    RESTORE_ROLLED_BACK = "restore.rolled_back"
    RESTORE_MOVED_ASIDE = "restore.moved_aside"
    RESTORE_EXCHANGES = "restore.exchanges"
    RESTORE_STATES = "restore.states"
    RESTORE_FLAGS = "restore.flags"
    RESTORE_COMPLETE = "restore.complete"
    RESCALE_COPIED = "rescale.copied"
    RESCALE_REPARTITIONED = "rescale.repartitioned"
    RESCALE_BEFORE_MOVING_ASIDE = "rescale.before_moving_aside"
    RESCALE_MOVED_ASIDE = "rescale.moved_aside"
    RESCALE_COMPLETE = "rescale.complete"
    RESCALE_REDISTRIBUTED = "rescale.redistributed"  # an exchange

    # files_2pc
    FILES_BEFORE_CLAIM = "files.before_claim"
    FILES_CLAIMED = "files.claimed"
    FILES_CLEANED = "files.cleaned"
    FILES_BEFORE_COMMIT = "files.before_commit"
    FILES_COMMITTED = "files.committed"
    FILES_PUBLISHED = "files.published"

    # which events of an inbox are repeats
    DECISIONS_BEFORE_WRITE = "decisions.before_write"
    DECISIONS_WRITTEN = "decisions.written"
    DECISIONS_BEFORE_MERGE = "decisions.before_merge"
    DECISIONS_MERGED = "decisions.merged"

    # http_2pc
    HTTP_FENCED = "http.fenced"
    HTTP_DECIDED = "http.decided"
    HTTP_BEFORE_REQUEST = "http.before_request"
    HTTP_ANSWERED = "http.answered"
    HTTP_ACKNOWLEDGED = "http.acknowledged"
    HTTP_BEFORE_SETTLE = "http.before_settle"
    HTTP_RECORDED = "http.recorded"
    HTTP_SETTLED = "http.settled"

    # kafka_2pc
    KAFKA_BEFORE_FENCE = "kafka.before_fence"
    KAFKA_FENCED = "kafka.fenced"
    KAFKA_CLEANED = "kafka.cleaned"
    KAFKA_BEFORE_COMMIT = "kafka.before_commit"
    KAFKA_COMMITTED = "kafka.committed"

    # postgres_2pc
    POSTGRES_FENCED = "postgres.fenced"
    POSTGRES_CLEANED = "postgres.cleaned"
    POSTGRES_READY = "postgres.ready"
    POSTGRES_STAGED = "postgres.staged"
    POSTGRES_BEFORE_PREPARE = "postgres.before_prepare"
    POSTGRES_PREPARED = "postgres.prepared"
    POSTGRES_GIVING_UP = "postgres.giving_up"
    POSTGRES_BEFORE_COMMIT = "postgres.before_commit"
    POSTGRES_RECORDED = "postgres.recorded"
    POSTGRES_PART_COMMITTED = "postgres.part_committed"
    POSTGRES_COMMITTED = "postgres.committed"


_NAMES: Final = frozenset(point.value for point in FailPoint)
_AREAS: Final = frozenset(name.partition(".")[0] for name in _NAMES)

_passed: Counter[str] = Counter()


def for_workers() -> dict[str, str]:
    """Environment variables for Python workers, also on other machines: the fail points, and the process to kill."""
    asked = {name: os.environ[name] for name in (VARIABLE, ONCE_DIR) if name in os.environ}
    return {DRIVER_PID: str(os.getpid()), **asked}


def reach(point: str) -> None:
    """Pass a `FailPoint`, or a point of your own connector; does nothing unless the environment sets an action for it.

    With actions set, an unknown point raises a ValueError; the action `raise` an OSError.
    """
    wanted = os.environ.get(VARIABLE)
    if wanted:
        _act(str(point), wanted)


def _refuse_unknown(name: str) -> None:
    if name not in _NAMES and name.partition(".")[0] in _AREAS:
        raise ValueError(f"{VARIABLE}: unknown fail point {name!r}")


def _act(point: str, wanted: str) -> None:
    _refuse_unknown(point)
    for item in wanted.split(";"):
        name, _, action = item.partition("=")
        _refuse_unknown(name)
        if name != point:
            continue
        action, _, nth = action.partition("#")
        _passed[point] += 1
        if _passed[point] != int(nth or 1) or not _first_to_act(point):
            continue
        if action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif action == "kill-driver":
            os.kill(int(os.environ[DRIVER_PID]), signal.SIGKILL)
        elif action == "raise":
            raise OSError(f"fail point {point}")
        elif action.startswith("wait:"):
            gate = Path(action.removeprefix("wait:"))
            gate.with_name(gate.name + ".waiting").touch()
            while not gate.exists():
                time.sleep(0.01)
        else:
            raise ValueError(f"{VARIABLE}: unknown action {action!r} at {point}")


def _first_to_act(point: str) -> bool:
    folder = os.environ.get(ONCE_DIR)
    if folder is None:
        return True
    try:
        (Path(folder) / point).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
