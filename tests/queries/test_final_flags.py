"""Flags and the row that says they are written lie in two tables: a failure between the two repeats none."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spark_ext import failpoints
from spark_ext.errors import JobFailedError
from spark_ext.ledger import Ledger
from spark_ext.ledger.memory import JobMemory
from spark_ext.ledger.schema import FinishedRow
from tests.support.jobs import JobHarness

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_failure_between_flags_and_their_step_repeats_no_flag(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = JobHarness(spark, tmp_path)
    # Of the rows of `checkpoints` the first is COMPLETED; before the second come the flags, in their own table.
    monkeypatch.setattr(failpoints, "_passed", Counter())
    monkeypatch.setenv(failpoints.VARIABLE, "ledger.checkpoints.before=raise#2")
    with pytest.raises(JobFailedError):
        lab.job(lab.source(), checkpoint_interval="1 hour", restart_attempts=0).run(progress=False)
    ledger = Ledger(str(tmp_path / "state"))
    steps = JobMemory.read(ledger).of("q").final
    assert steps is not None and steps.passed == {"COMPLETED"}
    before = Counter((flag.kind, flag.source, flag.channel) for flag in ledger.table(FinishedRow).rows())
    assert before[("query", "", "")] == 1

    monkeypatch.delenv(failpoints.VARIABLE)
    assert lab.job(lab.source()).run(progress=False).finished
    assert Counter((flag.kind, flag.source, flag.channel) for flag in ledger.table(FinishedRow).rows()) == before
