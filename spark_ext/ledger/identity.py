"""Who writes: an incarnation of a job, its lineage, and its rows in `jobs`."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any, Final

import psutil

from spark_ext.delta.transactions import Fence
from spark_ext.ledger.schema import JobRow
from spark_ext.model.lineages import FIRST, LineageEvent, Lineages

OBSERVER: Final = "observer"  # the kind of what is no job, but watches queries that others start
FIRST_LINEAGE = FIRST  # lineage of a job that was never reset or restored; an operator outside a job has lineage 0


@dataclass(frozen=True)
class Incarnation:
    """One start of a job."""

    job: str
    job_id: str  # drawn at the job's first start; distinguishes two jobs of one name
    number: int  # from 1
    lineage: int  # the job's newest lineage at the start
    start: int = 0  # drawn at random at this start, 63 bits: an equal number with another one is that of a copied state
    starts: frozenset[int] = frozenset()  # those of all earlier starts
    older: str = ""  # the driver of the last start, if it may still run; "" if it is known to have ended
    kind: str = ""  # `OBSERVER` if it only watches queries that others start; "" for a job

    @property
    def fence(self) -> Fence:
        """What its commits carry."""
        return Fence(self.job, self.number, self.start)


def job_row(incarnation: Incarnation, event: str, at: datetime | None = None, **given: Any) -> JobRow:
    """A row of `jobs`, written by this process, now unless `at` says when; `given` are further columns."""
    row = JobRow(
        job=incarnation.job,
        job_id=incarnation.job_id,
        incarnation=incarnation.number,
        start_id=incarnation.start or None,
        lineage=incarnation.lineage,
        query="",
        event=event,
        at=at or datetime.now(timezone.utc),
        host=socket.gethostname(),
        driver_pid=os.getpid(),
        driver_started=psutil.Process().create_time(),
        jvm_pid=None,
        application_id="",
        reason="",
        kind=incarnation.kind or None,
    )
    return replace(row, **given)


_RANK: Final = {"started": 0, "restored": 2, "ended": 3}  # of one incarnation's events, whose clock may be set back


def in_order(rows: Iterable[JobRow]) -> list[JobRow]:
    """Rows of `jobs`, oldest first."""
    return sorted(rows, key=lambda row: (row.incarnation, _RANK.get(row.event, 1), row.at))


def lineages(rows: Iterable[JobRow]) -> Lineages:
    """The lineages that the rows of `jobs` give a job's queries."""
    return Lineages(
        tuple(
            LineageEvent(row.query, row.lineage, row.incarnation, row.renamed_from, row.parent, dict(row.cut or {}))
            for row in in_order(rows)
            if row.event in ("reset", "renamed", "restored")
        )
    )


def restoring(rows: Iterable[JobRow]) -> JobRow | None:
    """The newest step of a restore that has begun and is not complete, if any."""
    found = None
    for row in in_order(rows):
        if row.event in ("restoring", "restored"):
            found = row if row.event == "restoring" else None
    return found
