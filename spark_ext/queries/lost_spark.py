"""Spark itself has gone: its JVM has died, or its session was stopped. Nothing can be restarted in such a process."""

from __future__ import annotations

import time
from collections.abc import Callable

import psutil

from spark_ext.errors import SparkLostError
from spark_ext.spark.backend.failures import is_lost_connection

DIES_WITHIN = 2.0
"""How long a JVM whose connections have broken may take to be gone, s."""

_KEPT = "all committed epochs, and the ledger"


def lost_spark(failure: BaseException, who: str, pid: int | None, stopped: Callable[[], bool]) -> SparkLostError | None:
    """The error of a query that has failed because Spark has gone; None if Spark is there.

    Takes up to two seconds, and only when the connection to the JVM has failed.

    Args:
        failure: as it was raised.
        who: job and query, for the message.
        pid: of the JVM; None: unknown.
        stopped: whether this process has stopped the session.
    """
    if stopped():
        return SparkLostError(
            "the Spark session was stopped while the job was running",
            operator=who,
            kept=_KEPT,
            do="stop the job with job.stop() before the session; a further run, with a new session, continues",
        )
    if pid is None or not is_lost_connection(failure) or not _dies(pid):
        return None
    return SparkLostError(
        f"Spark's JVM, process {pid}, has died",
        operator=who,
        kept=_KEPT,
        do="look for the cause: the system's log for the out-of-memory killer, hs_err_pid*.log for a crash; then start "
        "the program again: the job continues",
    )


def _dies(pid: int) -> bool:
    by = time.monotonic() + DIES_WITHIN
    while _lives(pid):
        if time.monotonic() > by:
            return False
        time.sleep(0.05)
    return True


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False
