"""The ledger of a job that has just started for the first time, for tests of what comes after that."""

from __future__ import annotations

import shutil
from functools import cache
from tempfile import TemporaryDirectory

from spark_ext.ledger import Incarnation, Ledger, start_incarnation
from spark_ext.ledger import incarnation as starts


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
