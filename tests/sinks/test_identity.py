"""A query on a job's checkpoint writes nothing without the identity of its job."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_ext.errors import StateError
from spark_ext.model.identity import OPTION, OUTSIDE, Identity
from spark_ext.sinks.runtime.writer import identity_of

WHO = "sink 'out'"


@pytest.mark.core
@pytest.mark.parametrize("form", ["{}", "file:{}", "{}/"])
def test_i3_below_a_jobs_checkpoint_nothing_is_written_without_its_identity(tmp_path: Path, form: str) -> None:
    checkpoint = form.format(tmp_path / "queries" / "q" / "checkpoint")
    mine = Identity(job="j", incarnation=1, start=5, checkpoint=checkpoint)
    assert identity_of({"checkpointLocation": checkpoint}, WHO) is OUTSIDE, "no job has its state there"
    (tmp_path / "ledger").mkdir()
    with pytest.raises(StateError, match="not started by this job"):
        identity_of({"checkpointLocation": checkpoint}, WHO)
    assert identity_of({"checkpointLocation": checkpoint, OPTION: mine.encode()}, WHO) == mine
