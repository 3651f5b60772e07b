"""Between sinks and Spark: the identity of a job, the position beside a checkpoint, and the barrier of an epoch."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import LongType, StructField, StructType, TimestampType

from spark_ext.errors import ConfigurationError, StateError
from spark_ext.model.commits import Claim, CommitOutcome, Epoch, Task
from spark_ext.model.identity import OPTION, OUTSIDE, Identity
from spark_ext.model.offsets import SourceOffset
from spark_ext.sinks.contract import TwoPhaseCommitSink
from spark_ext.sinks.runtime import position, writer
from spark_ext.sinks.runtime.position import NAME, Position, refuse_other_uid, remember, remembered
from spark_ext.sinks.runtime.writer import EpochWriter, Written, identity_of
from spark_ext.storage import StoreFolder, filesystem_of

WHO = "sink 'out'"


@pytest.mark.core
@pytest.mark.parametrize("form", ["{}", "file:{}", "{}/"])
def test_i3_below_a_jobs_checkpoint_only_the_job_itself_writes(tmp_path: Path, form: str) -> None:
    checkpoint = form.format(tmp_path / "queries" / "q" / "checkpoint")
    mine = Identity(job="j", incarnation=1, start=5, checkpoint=checkpoint)
    assert identity_of({"checkpointLocation": checkpoint}, WHO) is OUTSIDE, "no job has its state there"
    (tmp_path / "ledger").mkdir()
    with pytest.raises(StateError, match="not started by this job"):
        identity_of({"checkpointLocation": checkpoint}, WHO)
    assert identity_of({"checkpointLocation": checkpoint, OPTION: mine.encode()}, WHO) == mine


MINE = Position("out", 1, "query-id", 7)
START = 5


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(position, "_newest", {})
    for folder in ("offsets", "commits"):
        (tmp_path / "q" / "checkpoint" / folder).mkdir(parents=True)
    return str(tmp_path / "q" / "checkpoint")


def test_the_position_is_that_of_one_sink_lineage_and_query(checkpoint: str) -> None:
    assert remembered(checkpoint) is None
    remember(checkpoint, MINE, START)
    assert remembered(checkpoint) == remembered(checkpoint, start=START) == MINE
    assert MINE.of("out", 1, "query-id") == 7
    assert [MINE.of("other", 1, "query-id"), MINE.of("out", 2, "query-id"), MINE.of("out", 1, None)] == [None] * 3


def test_a_repeated_older_epoch_does_not_put_it_back(checkpoint: str) -> None:
    remember(checkpoint, MINE, START)
    remember(checkpoint, Position("out", 1, "query-id", 3), START)
    assert remembered(checkpoint) == MINE
    remember(checkpoint, Position("out", 2, "query-id", 3), START)
    assert remembered(checkpoint) == Position("out", 2, "query-id", 3)


def as_in_a_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(position, "folder_at", lambda uri, **_: StoreFolder(uri, lambda: filesystem_of(uri)))


def test_a_uri_is_opened_by_arrow(checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_in_a_store(monkeypatch)
    remember(f"file://{checkpoint}", MINE, START)
    assert Position(**json.loads((tmp_path / "q" / NAME).read_text())) == remembered(f"file://{checkpoint}") == MINE


def test_unreadable_positions_are_unknown(checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "q" / NAME).write_text('{"sink"')
    assert remembered(checkpoint) is None
    as_in_a_store(monkeypatch)
    for uri in ("nowhere://bucket/q/checkpoint", f"file://{tmp_path}/absent/q/checkpoint"):
        remember(uri, MINE, START)
        assert remembered(uri) is None


def test_a_sink_keeps_its_uid_while_its_last_epoch_may_repeat(checkpoint: str) -> None:
    remember(checkpoint, MINE, START)
    with pytest.raises(ConfigurationError, match="was 'out' and is 'other' now, and epoch 7 was committed"):
        refuse_other_uid(checkpoint, "other", 1, "query-id")
    refuse_other_uid(checkpoint, "out", 1, "query-id")
    refuse_other_uid(checkpoint, "other", 2, "query-id")
    (Path(checkpoint) / "commits" / "7").touch()
    refuse_other_uid(checkpoint, "other", 1, "query-id")


SCHEMA = StructType([StructField("n", LongType())])


class Recorder(TwoPhaseCommitSink):
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
    sink = kind({"uid": "out", OPTION: Identity("lab", "id", "q", str(tmp_path), str(checkpoint), 1, 1, 5).encode()})
    sink.calls = []
    made = EpochWriter(sink, SCHEMA)
    for epoch in range(len(barriers)):
        made.commit([Written("query-id", epoch, 0, None)], epoch)
    others = [("check", epoch, None) for epoch in (0, 1, 3, 4, 5)]
    assert sink.calls == [*others[:2], (empty, 2, 4), *others[2:]]
    sink.calls.clear()
    made.commit([Written("query-id", 2, 1, "rows")], 2)
    assert sink.calls == [("commit", 2, 4)], "repeated, with rows"


@pytest.mark.parametrize("syncs", [True, False])
def test_g1_an_epoch_is_durable_before_the_target_has_it_and_before_it_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, syncs: bool
) -> None:
    """With an inbox: what the tasks and Spark have written before the commit, and what the commit has written after."""
    checkpoint = str(tmp_path / "queries" / "q" / "checkpoint")
    mine = Identity("lab", "id", "q", "state", checkpoint, 1, 1, 5, syncs=syncs)
    sink, done = Recorder({"uid": "out", OPTION: mine.encode()}), list[object]()
    sink.given = {**sink.given, "Path": "table", "bad_rows_path": ""}
    monkeypatch.setattr(sink, "calls", done, raising=False)
    monkeypatch.setattr(writer, "sync_systems", done.append)
    monkeypatch.setattr(writer, "remember", lambda *_: done.append("counts"))
    EpochWriter(sink, SCHEMA).commit([Written("query-id", 0, 1, "rows")], 0)
    synced = [{"state", "table"}] if syncs else []
    assert done == [*synced, ("commit", 0, None), *synced, "counts"]


class Passing(Recorder):
    passes_watermarks = True

    def commit(self, schema: StructType, epoch: Epoch, prepared: Sequence[Any]) -> CommitOutcome:
        self.calls.append(("commit", epoch.number, epoch.watermark))
        return CommitOutcome.COMMITTED


@pytest.mark.parametrize("marked", [True, False])
def test_an_epoch_without_rows_is_committed_for_a_later_watermark(tmp_path: Path, marked: bool) -> None:
    """Its value is that of Spark's log, in a replay too; without a column that it is about nobody needs it."""
    checkpoint = tmp_path / "queries" / "q" / "checkpoint"
    (checkpoint / "offsets").mkdir(parents=True)
    for epoch, at in enumerate((0, 500, 500, 700)):
        (checkpoint / "offsets" / str(epoch)).write_text(f'v1\n{{"batchWatermarkMs":{at}}}\n-')
    given = {"uid": "out", OPTION: Identity("lab", "id", "q", str(tmp_path), str(checkpoint), 1, 1, 5).encode()}
    sink = Passing(given)
    sink.calls = []
    times = StructField("ts", TimestampType(), metadata={"spark.watermarkDelayMs": 1000} if marked else {})
    made = EpochWriter(sink, StructType([times]))
    for epoch in (0, 1, 2, 3, 3):
        made.commit([Written("query-id", epoch, 0, None)], epoch)
    made.commit([Written("query-id", 2, 0, "rows")], 2)
    late = ("commit", 3, 700)
    wanted = [("check", 0, None), ("commit", 1, 500), ("check", 2, None), late, late, ("commit", 2, 500)]
    never = [*(("check", epoch, None) for epoch in (0, 1, 2, 3, 3)), ("commit", 2, 0)]
    assert sink.calls == (wanted if marked else never)
