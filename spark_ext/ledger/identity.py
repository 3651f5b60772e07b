"""Who writes: an incarnation of a job, its lineage, and its rows in `jobs`."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import psutil

from spark_ext.delta.transactions import Fence
from spark_ext.ledger.schema import JobRow
from spark_ext.model.lineages import FIRST, LineageEvent, Lineages

OBSERVER: Final = "observer"
"""The kind of what is no job, but watches queries that others start."""

FIRST_LINEAGE = FIRST
"""Lineage of a job that was never reset or restored; an operator outside a job has lineage 0."""


@dataclass(frozen=True)
class Incarnation:
    """One start of a job."""

    job: str
    job_id: str
    """Drawn at the job's first start; distinguishes two jobs of one name."""
    number: int
    """From 1."""
    lineage: int
    """The job's newest lineage at the start."""
    start: int = 0
    """Drawn at random at this start, 63 bits: an equal number with another one is that of a copied state."""
    starts: frozenset[int] = frozenset()
    """Those of all earlier starts."""
    older: str = ""
    """The driver of the last start, if it may still run; "" if it is known to have ended."""
    kind: str = ""
    """`OBSERVER` if it only watches queries that others start; "" for a job."""

    @property
    def fence(self) -> Fence:
        """What its commits carry."""
        return Fence(self.job, self.number, self.start)


def job_row(
    incarnation: Incarnation,
    event: str,
    at: datetime,
    *,
    lineage: int | None = None,
    query: str = "",
    reason: str = "",
    jvm_pid: int | None = None,
    application_id: str = "",
    renamed_from: str | None = None,
    parent: int | None = None,
    cut: Mapping[str, int] | None = None,
    savepoint: str | None = None,
) -> JobRow:
    """A row of `jobs`, written by this process."""
    return JobRow(
        job=incarnation.job,
        job_id=incarnation.job_id,
        incarnation=incarnation.number,
        start_id=incarnation.start or None,
        lineage=incarnation.lineage if lineage is None else lineage,
        query=query,
        event=event,
        at=at,
        host=socket.gethostname(),
        driver_pid=os.getpid(),
        driver_started=psutil.Process().create_time(),
        jvm_pid=jvm_pid,
        application_id=application_id,
        reason=reason,
        renamed_from=renamed_from,
        parent=parent,
        cut=None if cut is None else dict(cut),
        savepoint=savepoint,
        kind=incarnation.kind or None,
    )


_RANK: Final = {"started": 0, "restored": 2, "ended": 3}
"""Of the events of one incarnation, whatever their times say: its clock may have been set back meanwhile."""


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
