"""The start of a job: its incarnation number, by compare-and-swap, and the fence that shuts older ones out.

The number decides who owns the job; whether another driver is still running is checked only to refuse a start by
mistake. Driver and JVM are identified by process id and start time, on this host. Nothing is known of other hosts:
there the fence has to suffice.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import psutil
from tenacity import RetryError, Retrying, retry_if_result, stop_after_delay, wait_fixed

from spark_ext.errors import FencedError, JobRunningError, StateError, StorageError
from spark_ext.failpoints import FailPoint, reach
from spark_ext.ledger.heartbeat import SILENT_AFTER, is_silent, last_beat
from spark_ext.ledger.identity import FIRST_LINEAGE, OBSERVER, Incarnation, job_row, restoring
from spark_ext.ledger.ledger import Ledger
from spark_ext.ledger.schema import JobRow
from spark_ext.spark.session import registry
from spark_ext.storage import local_path

if TYPE_CHECKING:
    from spark_ext.model.identity import Identity
    from spark_ext.spark.session.registry import Registration


JVM_TIMEOUT = 30.0  # how long a start waits for the JVM of a driver that was killed, s: it exits within moments
ATTEMPTS = 20  # attempts to take the next number; each one lost means that another start took it
CLOCK_STEP = 2.0  # tolerance between two readings of a process's start time, s: the wall clock may be adjusted

_WAIT: Final = "wait for its end with run(if_running='wait') or --if-running wait"
_TAKE_OVER: Final = (
    "start the job with Job(..., takeover=True), which fences it off (a restore, reset or rescale waits for its end)"
)

_starting = threading.Lock()
_running: set[tuple[str, int]] = set()  # incarnations of this process: state directory and number


def start_incarnation(
    ledger: Ledger,
    job: str,
    *,
    takeover: bool = False,
    jvm_pid: int | None = None,
    application_id: str = "",
    now: datetime | None = None,
    for_restore: bool = False,
    kind: str = "",
    other_hosts: bool = False,
) -> Incarnation:
    """Take the job's next incarnation, and fence all tables of the ledger against older ones.

    On return no older incarnation can add a row: what is read from the ledger from here on stays true.

    Args:
        takeover: start even if another driver seems to run the job.
        now: time of the start, UTC; None: the current time.
        for_restore: whether it is that of a restore: nothing else may start while one is not complete.
        kind: see `Incarnation.kind`; a directory is that of a job or of an Observer, and stays so.
    """
    who = f"job '{job}', state {ledger.uri}"
    check = partial(
        refuse_start,
        ledger,
        job,
        takeover=takeover,
        application_id=application_id,
        for_restore=for_restore,
        kind=kind,
        other_hosts=other_hosts,
    )
    with _starting:
        incarnation = _take_number(ledger, job, kind, check, who, now, jvm_pid=jvm_pid, application_id=application_id)
        _running.add((ledger.uri, incarnation.number))
    try:
        reach(FailPoint.INCARNATION_TAKEN)
        for table in ledger.tables.values():
            table.raise_fence(incarnation.fence)
    except BaseException:
        forget(ledger.uri, incarnation.number)
        raise
    return incarnation


def refuse_start(
    ledger: Ledger,
    job: str,
    past: Sequence[JobRow],
    *,
    takeover: bool,
    application_id: str,
    other_hosts: bool,
    for_restore: bool = False,
    kind: str = "",
) -> None:
    """Refuse to take a number, by what the ledger says of earlier starts. Writes nothing."""
    who = f"job '{job}', state {ledger.uri}"
    _refuse_other_job(past, job, ledger.uri)
    _refuse_other_kind(past, kind, who)
    _refuse_damage(ledger, past, who)
    _refuse_older_tables(ledger, past, job)
    if not for_restore:
        _refuse_half_restored(past, who)
    if not takeover:
        _refuse_running(past, job, who, ledger.uri, application_id)
        if other_hosts:
            _refuse_beating(past, job, who, ledger)


@dataclass(frozen=True)
class NextStart:
    """The start that would come next."""

    number: int  # its incarnation
    older: str  # see `Incarnation.older`
    job_id: str  # of the job, or one drawn for a job without a start
    starts: frozenset[int]  # see `Incarnation.starts`

    @classmethod
    def of(cls, past: Sequence[JobRow], uri: str) -> NextStart:
        """By the rows of `jobs`."""
        return cls(
            max((row.incarnation for row in past), default=0) + 1,
            _may_still_run(past, uri),
            past[0].job_id if past else uuid.uuid4().hex,
            frozenset(row.start_id for row in past if row.start_id is not None),
        )


def forget(uri: str, number: int) -> None:
    """The incarnation no longer runs in this process."""
    _running.discard((uri, number))


def _take_number(
    ledger: Ledger, job: str, kind: str, check: Callable[[Sequence[JobRow]], None], who: str, now: datetime | None,
    **started: Any,
) -> Incarnation:  # fmt: skip
    jobs = ledger.table(JobRow)
    for _ in range(ATTEMPTS):
        past, version = jobs.rows(), jobs.version
        check(past)
        # All tables exist before the first number is taken: one that is missing later was deleted.
        for table in ledger.tables.values():
            table.create()
        if version is None:
            continue
        coming = NextStart.of(past, ledger.uri)
        taken = Incarnation(
            job,
            coming.job_id,
            number=coming.number,
            lineage=max((row.lineage for row in past), default=FIRST_LINEAGE),
            start=secrets.randbelow(2**63 - 1) + 1,
            starts=coming.starts,
            older=coming.older,
            kind=kind,
        )
        if jobs.compare_and_swap([job_row(taken, "started", now, **started)], version, taken.fence):
            return taken
    raise StorageError(
        f"no incarnation could be taken: other starts were faster, {ATTEMPTS} times in a row",
        operator=who,
        kept="the state is unchanged",
        do="find out which processes start this job again and again, and start it once",
    )


def is_alive(pid: int, started: float) -> bool:
    """Whether this process of this host is still running. One that has exited and is not reaped yet is not."""
    return _runs(pid, lambda found: abs(found - started) < CLOCK_STEP)


def _runs(pid: int | None, is_it: Callable[[float], bool]) -> bool:
    """Whether a process is running that is the expected one by the time at which it was started."""
    try:
        process = psutil.Process(pid)
        return is_it(process.create_time()) and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _refuse_other_job(past: Sequence[JobRow], job: str, uri: str) -> None:
    if past and past[0].job != job:
        raise StateError(
            f"the state directory {uri} belongs to job '{past[0].job}', not to job '{job}'",
            operator=f"job '{job}'",
            kept=f"the state of job '{past[0].job}' is unchanged; nothing was started",
            do=f"give job '{job}' a state directory of its own, or start it under the name '{past[0].job}'",
        )


def _refuse_other_kind(past: Sequence[JobRow], kind: str, who: str) -> None:
    before = past[0].kind or "" if past else kind
    if before != kind:
        raise StateError(
            "the state directory is that of an Observer, and not of a job"
            if before == OBSERVER
            else "the state directory is that of a job, and not of an Observer",
            operator=who,
            kept="it is unchanged; nothing was started",
            do="give each of them a state directory of its own",
        )


def _refuse_damage(ledger: Ledger, past: Sequence[JobRow], who: str) -> None:
    for table in ledger.lost([row.start_id for row in past]):
        raise table.errors.lost("starting the job", "it was created at the first start and is missing")
    if past:
        return
    place = local_path(ledger.uri)
    if place is not None and any(place.glob("queries/*/checkpoint/commits/*")):
        raise StateError(
            "there are Spark checkpoints of earlier runs, but no ledger: it is unknown which channels have finished, "
            "and they would be read again",
            operator=who,
            kept="nothing was started, nothing was changed",
            do=f"restore {ledger.folder} from a backup; to start over, delete the whole state directory and the output",
        )


def _refuse_older_tables(ledger: Ledger, past: Sequence[JobRow], job: str) -> None:
    """Refuse when a table was put back from an older copy: a start that is complete has left its fence in all tables.

    Fences are raised in order, and read here in the opposite one: a start that is under way is no damage.
    """
    needed = max((row.incarnation for row in past if row.start_id and row.event != "started"), default=0)
    complete = needed > 0
    for table in reversed(ledger.tables.values()):
        with table.opened() as handle:
            held = None if handle is None else handle.transaction_version(f"fence:{job}")
        if held is None and not complete and table.row_type is not JobRow:
            continue
        if (held or 0) < needed:
            raise StateError(
                "the table was put back from an older copy, and rows of it are gone: the newest start that it knows is "
                f"{held or 0}, and the ledger has {needed}",
                operator=table.errors.operator,
                kept="the state and all output are unchanged; nothing was started",
                do="put the newest copy of this table back; to start over, delete the whole state directory and the "
                "job's output",
            )
        needed = max(needed, held or 0)


def _refuse_half_restored(past: Sequence[JobRow], who: str) -> None:
    step = restoring(past)
    if step is not None:
        raise StateError(
            f"a restore from {step.savepoint} has begun and is not complete: its last step was '{step.reason}'. Some "
            "targets may have been put back, and the state not yet",
            operator=who,
            kept="the savepoint is unchanged; nothing was started",
            do=f"complete it with job.restore({step.savepoint!r}), or restore another savepoint",
        )


def _not_ended(past: Sequence[JobRow]) -> JobRow | None:
    """The start of the newest incarnation, if its end is not recorded."""
    newest = max((row for row in past if row.event == "started"), key=lambda row: row.incarnation, default=None)
    if newest is not None and any(row.event == "ended" and row.incarnation == newest.incarnation for row in past):
        return None
    return newest


def _refuse_running(past: Sequence[JobRow], job: str, who: str, uri: str, application_id: str) -> None:
    """Refuse when the newest incarnation has not ended and is still running on this host."""
    newest = _not_ended(past)
    if newest is None or newest.host != socket.gethostname():
        return
    if is_alive(newest.driver_pid, newest.driver_started):
        if newest.driver_pid == os.getpid():
            here = (uri, newest.incarnation)
            if application_id and newest.application_id and newest.application_id != application_id:
                # A process has one Spark at a time: that one was stopped, and its job is about to end.
                _await_end(here)
            if here not in _running:
                return
        raise JobRunningError(
            f"job '{job}' is running as incarnation {newest.incarnation} in process {newest.driver_pid}",
            operator=who,
            kept="the running job continues; nothing was started",
            do=f"stop it, {_WAIT}, or {_TAKE_OVER}",
        )
    _await_jvm(newest, who)


def _refuse_beating(past: Sequence[JobRow], job: str, who: str, ledger: Ledger) -> None:
    """Refuse when the newest incarnation has not ended, runs on another host, and has shown lately that it is alive."""
    newest = _not_ended(past)
    if newest is None or newest.host == socket.gethostname():
        return
    beat = last_beat(ledger.uri, newest.incarnation, newest.start_id, ledger.storage_options)
    if beat is not None and not is_silent(beat, datetime.now(timezone.utc)):
        raise JobRunningError(
            f"job '{job}' is running as incarnation {newest.incarnation} on host {newest.host}, which was alive at "
            f"{beat:%H:%M:%S} UTC",
            operator=who,
            kept="the running job continues; nothing was started",
            do=f"{_WAIT}, or {_TAKE_OVER}; if that host is gone, its heartbeat is "
            f"disregarded {SILENT_AFTER / 1000:g} s after the last one",
        )


def _may_still_run(past: Sequence[JobRow], uri: str) -> str:
    """The driver of the newest incarnation, unless it is known to have ended: then, and before any start, ""."""
    newest = _not_ended(past)
    if newest is None:
        return ""
    if newest.host == socket.gethostname():
        running = newest.driver_pid != os.getpid() or (uri, newest.incarnation) in _running
        if not running or not is_alive(newest.driver_pid, newest.driver_started):
            return ""
    return f"process {newest.driver_pid} on {newest.host}, incarnation {newest.incarnation}"


def _await_end(incarnation: tuple[str, int]) -> None:
    """Wait until an incarnation of this process has ended."""
    with suppress(RetryError):
        _await_false(lambda: incarnation in _running)


def _await_false(condition: Callable[[], bool]) -> None:
    Retrying(retry=retry_if_result(bool), wait=wait_fixed(0.05), stop=stop_after_delay(JVM_TIMEOUT))(condition)


def _await_jvm(dead: JobRow, who: str) -> None:
    """Wait for the JVM of a driver that was killed: it may be in the middle of an epoch."""

    def runs() -> bool:
        # A process that started after the row was written merely has the same id.
        return _runs(dead.jvm_pid, lambda started: started < dead.at.timestamp() + CLOCK_STEP)

    if dead.jvm_pid is None:
        return
    try:
        _await_false(runs)
    except RetryError:
        raise StateError(
            f"the driver of incarnation {dead.incarnation} is dead, but its JVM, process {dead.jvm_pid}, is still "
            f"running after {JVM_TIMEOUT:g} s",
            operator=who,
            kept="the state is unchanged; nothing was started",
            do=f"end process {dead.jvm_pid}, or {_TAKE_OVER}",
        ) from None


def require_newest(mine: Registration | Identity, uid: str) -> None:
    """In a worker whose registration has gone or was replaced: refuse to go on if a newer start has done that.

    A server of Spark Connect outlives its clients, and no newer start stops, or claims the target of, a query that has
    left the job.
    """
    newest = Ledger(mine.state).newest_incarnation()
    there = registry.lookup(uid)
    if (newest or 0) > mine.incarnation or (there is not None and there.job_id != mine.job_id):
        raise FencedError(
            f"incarnation {newest} of the job has been started; this query belongs to incarnation {mine.incarnation}",
            operator=f"job '{mine.job}', query '{mine.query}'",
            kept="all committed epochs",
            do="no action is needed: the newest start decides which queries run",
        )
