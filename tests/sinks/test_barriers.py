"""The barrier of an aligned checkpoint, as a sink learns of it: from the offsets of its epoch and of the one before."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import LongType, StructField, StructType

from spark_ext.model.commits import Claim, CommitOutcome, Epoch, Task
from spark_ext.model.identity import OPTION, Identity
from spark_ext.model.offsets import SourceOffset
from spark_ext.sinks.contract import TwoPhaseCommitSink
from spark_ext.sinks.runtime.writer import EpochWriter, Written

SCHEMA = StructType([StructField("n", LongType())])


class Recorder(TwoPhaseCommitSink):
    """Remembers what it is asked to commit, and what to look at."""

    calls: list[tuple[str, int, int | None]]

    @classmethod
    def name(cls) -> str:
        return "recorder"

    def write(self, schema: StructType, batches: Iterator[Any], task: Task) -> Any:
        raise NotImplementedError

    def commit(self, schema: StructType, epoch: Epoch, prepared: Sequence[Any]) -> CommitOutcome:
        self.calls.append(("commit", epoch.number, epoch.barrier))
        return CommitOutcome.COMMITTED

    def check(self, epoch: Epoch) -> None:
        self.calls.append(("check", epoch.number, epoch.barrier))

    def claim(self, claim: Claim) -> None:
        raise NotImplementedError


class Marking(Recorder):
    records_barriers = True


@pytest.mark.parametrize(("kind", "empty"), [(Recorder, "check"), (Marking, "commit")])
def test_only_the_first_epoch_that_carries_it_has_it(kind: type[Recorder], empty: str, tmp_path: Path) -> None:
    """An epoch without rows is committed only where the target records barriers."""
    checkpoint = tmp_path / "queries" / "q" / "checkpoint"
    barriers: list[list[int | None]] = [[0, 0], [4, 0], [4, 4], [4, 4], [4, None], [None, None]]
    for epoch, sources in enumerate(barriers):
        place = checkpoint / "offsets" / str(epoch)
        place.parent.mkdir(parents=True, exist_ok=True)
        offsets = [
            SourceOffset(f"s{number}", barrier=barrier or 0, ended=barrier is None).to_json()
            for number, barrier in enumerate(sources)
        ]
        place.write_text("\n".join(["v1", "{}", *map(json.dumps, offsets)]))
    identity = Identity("lab", "id", "q", str(tmp_path), str(checkpoint), 1, 1, 5)
    sink = kind({"uid": "out", OPTION: identity.encode()})
    sink.calls = []
    writer = EpochWriter(sink, SCHEMA)
    for epoch in range(len(barriers)):
        writer.commit([Written("query-id", epoch, 0, None)], epoch)
    assert sink.calls == [
        ("check", 0, None),
        ("check", 1, None),
        (empty, 2, 4),
        ("check", 3, None),
        ("check", 4, None),
        ("check", 5, None),
    ]
    sink.calls.clear()
    writer.commit([Written("query-id", 2, 1, "rows")], 2)
    assert sink.calls == [("commit", 2, 4)], "repeated, with rows"
