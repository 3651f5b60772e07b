"""The ledger of a job that has just started for the first time, and what one says."""

import shutil
from functools import cache
from tempfile import TemporaryDirectory

from spark_ext.ledger import Incarnation, Ledger, start_incarnation
from spark_ext.ledger import incarnation as starts
from spark_ext.ledger.memory import JobMemory
from spark_ext.ledger.schema import CheckpointRow


def started(ledger: Ledger, job: str) -> Incarnation:
    """What `start_incarnation` makes of an empty directory, which takes 14 tables and a tenth of a second.

    It is made once in a process and copied: all jobs of this name have the same id and the same start.
    """
    made, incarnation = _first(job)
    shutil.copytree(made.name, ledger.uri, dirs_exist_ok=True)
    starts._running.add((ledger.uri, incarnation.number))
    return incarnation


@cache
def _first(job: str) -> tuple[TemporaryDirectory[str], Incarnation]:
    made = TemporaryDirectory(prefix="spark-ext-ledger-")
    return made, start_incarnation(Ledger(made.name), job)


def flagged(ledger: Ledger, query: str, source: str) -> int:
    """The largest s such that the flags of a source's finishes 1..s are there."""
    return JobMemory.read(ledger).of(query).flagged.get(source, 0)


def checkpoints(ledger: Ledger, query: str = "") -> list[CheckpointRow]:
    """The steps of checkpoints of a query, or of the whole job, in order."""
    rows = ledger.table(CheckpointRow).rows([("query", "=", query)])
    return sorted(rows, key=lambda row: (row.checkpoint_id, row.at))
