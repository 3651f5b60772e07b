import os
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from spark_ext.errors import FencedError
from spark_ext.ledger import Ledger, LedgerWriter, MaintenanceSettings, maintain, schema, start_incarnation
from spark_ext.ledger.incarnation import forget
from spark_ext.ledger.maintenance import spared_from
from spark_ext.ledger.schema import EpochRow, Row
from spark_ext.ledger.tables import LedgerTable
from spark_ext.ledger.view import SourceView
from tests.ledger import rows as made
from tests.ledger.rows import START, checkpoint, epoch, event, flag, line, process
from tests.servers.object_store import Bucket

pytestmark = pytest.mark.slow(0.4, "maintains the 14 tables of a ledger")

LONG = timedelta(minutes=5)
AT_ONCE = MaintenanceSettings(small_files=2, sweep_every=timedelta(0), file_retention_hours=0, budget=LONG)


def now() -> datetime:
    return datetime.now(timezone.utc)


def files(writer: LedgerWriter, table: str) -> int:
    return len(list((Path(writer.ledger.folder) / table).glob("*.parquet")))


def log_files(writer: LedgerWriter, table: str) -> list[Path]:
    return [path for path in (Path(writer.ledger.folder) / table / "_delta_log").iterdir() if path.is_file()]


@pytest.mark.slow(6, "hundreds of commits to a Delta log")
def test_growth_is_bounded_and_readers_are_not_disturbed(writer: LedgerWriter) -> None:
    """Many appends, maintained as they come; another process reads all the time and always sees a whole prefix."""
    appends = 250
    script = f"""
ledger = Ledger(uri)
greatest = 0
while greatest < {appends}:
    found = sorted(row.epoch for row in ledger.tables["epochs"].rows())
    assert found == list(range(1, len(found) + 1)), found
    assert len(found) >= greatest
    greatest = len(found)
say("read all")
"""
    settings = MaintenanceSettings(sweep_every=timedelta(0), file_retention_hours=0, budget=LONG)
    ever = now() + timedelta(days=10_000)
    with process(script, writer.ledger.uri) as reader:
        for number in range(1, appends + 1):
            writer.append(epoch(number, at=ever))
            if number % (appends // 10) == 0:
                maintain(writer.ledger, now(), settings, writer.incarnation.fence)
        assert line(reader) == "read all"
    assert sorted(row.epoch for row in Ledger(writer.ledger.uri).table(EpochRow).rows()) == list(range(1, appends + 1))
    assert files(writer, "epochs") == 1
    # Log files younger than an hour stay; made old, those that a checkpoint has replaced go.
    hour_ago = time.time() - 3700
    for path in log_files(writer, "epochs"):
        os.utime(path, (hour_ago, hour_ago))
    assert len(log_files(writer, "epochs")) > appends
    writer.append(epoch(appends + 1, at=ever))
    done = maintain(writer.ledger, now(), settings, writer.incarnation.fence)
    assert [(it.table, it.what) for it in done] == [("epochs", "clean log")]
    assert len(log_files(writer, "epochs")) < 150
    assert sorted(row.epoch for row in Ledger(writer.ledger.uri).table(EpochRow).rows()) == list(range(1, appends + 2))
    assert start_incarnation(Ledger(writer.ledger.uri), "j", takeover=True).number == 2
    with pytest.raises(FencedError):
        writer.append(epoch(appends + 2))


def test_an_idle_ledger_is_left_alone(writer: LedgerWriter) -> None:
    writer.append([epoch(1), epoch(2)])
    maintain(writer.ledger, now(), MaintenanceSettings(budget=LONG), writer.incarnation.fence)
    versions = {name: table.version for name, table in writer.ledger.tables.items()}
    for _ in range(2):
        assert maintain(writer.ledger, now() + timedelta(hours=1), fence=writer.incarnation.fence) == []
    again = Ledger(writer.ledger.uri).tables
    assert {name: table.version for name, table in again.items() if table.refresh()} == versions


def test_work_is_left_when_the_time_is_used_up(writer: LedgerWriter) -> None:
    for number in range(3):
        writer.append([epoch(number), flag(number + 1)])
    hurried = MaintenanceSettings(small_files=2, budget=timedelta(0))
    calls = [maintain(writer.ledger, now(), hurried, writer.incarnation.fence) for _ in range(6)]
    assert all(len({it.table for it in done}) <= 1 for done in calls)
    settled = MaintenanceSettings(small_files=2, budget=LONG)
    maintain(writer.ledger, now(), settled, writer.incarnation.fence)
    with writer.ledger.table(EpochRow).opened() as delta:
        assert delta is not None and len(delta.file_uris()) == 1


def test_every_table_has_its_turn_even_in_short_hurried_runs(writer: LedgerWriter) -> None:
    """Short runs: what a process remembers of earlier calls is lost with it."""
    tables = set(writer.ledger.tables)
    for name, table in writer.ledger.tables.items():
        table.checkpoint_log()
        for path in log_files(writer, name):
            os.utime(path, (time.time() - 3700,) * 2)
    hurried = MaintenanceSettings(budget=timedelta(0))
    swept = [
        it.table
        for turn in range(len(tables))
        for it in maintain(Ledger(writer.ledger.uri), now(), hurried, writer.incarnation.fence, turn)
    ]
    assert sorted(swept) == sorted(tables)


def test_an_older_incarnation_may_not_maintain(writer: LedgerWriter) -> None:
    for number in range(3):
        writer.append(epoch(number))
    start_incarnation(Ledger(writer.ledger.uri), "j", takeover=True)
    with pytest.raises(FencedError):
        maintain(writer.ledger, now(), AT_ONCE, writer.incarnation.fence)
    with Ledger(writer.ledger.uri).table(EpochRow).opened() as delta:
        assert delta is not None
        assert len(delta.file_uris()) == 3


def test_compaction_does_not_fence_its_own_incarnation(writer: LedgerWriter) -> None:
    other = LedgerWriter(Ledger(writer.ledger.uri), writer.incarnation)
    for number in range(3):
        other.append(epoch(number, at=now()))
    maintain(writer.ledger, now(), AT_ONCE, writer.incarnation.fence)
    other.append(epoch(3, at=now()))
    writer.append(epoch(4, at=now()))
    assert sorted(row.epoch for row in writer.ledger.table(EpochRow).rows()) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("sizes", "spared"),
    [
        ([], None),
        ([5], None),
        ([5, 5, 5], None),
        ([1_000, 60, 65], None),
        ([1_001, 60, 65], 1_001),
        ([60, 100_000, 65, 1_001], 1_001),
        ([100_000, 10_000, 9_000, 5], None),
    ],
)
def test_a_file_stays_while_all_smaller_ones_have_less_than_an_eighth_of_its_size(
    sizes: list[int], spared: int | None
) -> None:
    assert spared_from(sizes) == spared


def test_a_compaction_writes_what_was_added_and_not_the_history(writer: LedgerWriter) -> None:
    writer.append([epoch(number, at=now()) for number in range(20_000)])
    (history,) = (Path(writer.ledger.folder) / "epochs").glob("*.parquet")
    for number in range(20_000, 20_004):
        writer.append(epoch(number, at=now()))
    maintain(writer.ledger, now(), AT_ONCE, writer.incarnation.fence)
    assert history.exists() and files(writer, "epochs") == 2
    assert sorted(row.epoch for row in writer.ledger.table(EpochRow).rows()) == list(range(20_004))


def test_replaced_files_stay_for_a_slow_reader(writer: LedgerWriter) -> None:
    for number in range(3):
        writer.append(epoch(number))
    with LedgerTable(str(Path(writer.ledger.folder) / "epochs"), EpochRow).opened() as delta:
        assert delta is not None
        patient = MaintenanceSettings(small_files=2, sweep_every=timedelta(0), budget=LONG)
        maintain(writer.ledger, now(), patient, writer.incarnation.fence)
        assert sorted(delta.to_pyarrow_table()["epoch"].to_pylist()) == [0, 1, 2]
    maintain(writer.ledger, now(), AT_ONCE, writer.incarnation.fence)
    assert files(writer, "epochs") == 1


def test_leftovers_of_an_append_go_unless_they_await_a_commit(writer: LedgerWriter) -> None:
    writer.append(epoch(1))
    file = Path(writer.ledger.folder) / "epochs" / "part-00000-not-committed.snappy.parquet"
    file.write_bytes(b"PAR1")
    maintain(writer.ledger, now(), AT_ONCE, writer.incarnation.fence)
    assert file.exists()
    last_week = time.time() - 8 * 24 * 3600
    os.utime(file, (last_week, last_week))
    maintain(writer.ledger, now(), AT_ONCE, writer.incarnation.fence)
    assert not file.exists()
    assert [row.epoch for row in writer.ledger.table(EpochRow).rows()] == [1]


OLD = START
NEW = START + timedelta(days=100)
NOW = START + timedelta(days=101)


def expire(writer: LedgerWriter, at: datetime = NOW) -> None:
    settings = MaintenanceSettings(sweep_every=timedelta(0), budget=LONG, newest_checkpoints=2)
    maintain(writer.ledger, at, settings, writer.incarnation.fence)


def left(writer: LedgerWriter, row_type: type[Row], *names: str) -> list[tuple[object, ...]]:
    return sorted(tuple(getattr(row, name) for name in names) for row in writer.ledger.table(row_type).rows())


def test_old_epochs_go_but_never_the_newest_nor_flags_and_jobs(writer: LedgerWriter) -> None:
    writer.append([epoch(1, at=OLD), epoch(2, at=OLD), epoch(3, at=NEW)])
    writer.append([epoch(1, "it's", at=OLD), epoch(2, "it's", at=OLD), epoch(7, "q", 2, at=OLD)])
    expire(writer)
    assert left(writer, EpochRow, "query", "lineage", "epoch") == [("it's", 1, 2), ("q", 1, 3), ("q", 2, 7)]
    writer.append([flag(1), flag(2)])
    expire(writer, NOW + timedelta(days=100_000))
    assert left(writer, EpochRow, "query", "lineage", "epoch") == [("it's", 1, 2), ("q", 1, 3), ("q", 2, 7)]
    assert left(writer, schema.FinishedRow, "sequence") == [(1,), (2,)]
    assert len(writer.ledger.jobs()) == 1


def test_settled_events_are_deleted_but_their_sequence_continues(writer: LedgerWriter) -> None:
    for sequence, end in enumerate(["acknowledged", "rejected", "failed", "applied", "acknowledged"], start=1):
        writer.append([event(sequence, at=OLD), event(sequence, status=end, at=OLD if sequence < 5 else NEW)])
    writer.append([event(6, at=OLD), event(6, status="acknowledged", at=OLD)])
    expire(writer)
    assert {number for (number,) in left(writer, schema.ControlEventRow, "sequence")} == {4, 5, 6}
    assert writer.ledger.newest_control_sequence() == 6


def test_old_checkpoints_go_except_newest_final_and_savepoint(writer: LedgerWriter) -> None:
    writer.append([checkpoint(number, at=OLD) for number in (1, 2, 5, 6)])
    writer.append([checkpoint(3, "final", "COMPLETED", "q", at=OLD), checkpoint(3, "final", "CLOSED", "q", at=OLD)])
    writer.append([checkpoint(4, "savepoint", at=OLD), checkpoint(7, status="FAILED", at=OLD)])
    expire(writer)
    assert {number for (number,) in left(writer, schema.CheckpointRow, "checkpoint_id")} == {3, 4, 5, 6, 7}
    assert len(left(writer, schema.CheckpointRow, "checkpoint_id")) == 6, "both steps of the final one"


def test_the_newest_aligned_checkpoint_stays_for_its_barrier(writer: LedgerWriter) -> None:
    for number in (1, 2):
        writer.append([checkpoint(number, status=status, at=OLD) for status in ("TRIGGERED", "FAILED")])
    writer.append([checkpoint(number, at=OLD) for number in (3, 4, 5)])
    expire(writer)
    assert {number for (number,) in left(writer, schema.CheckpointRow, "checkpoint_id")} == {2, 4, 5}
    # What a planner knows that begins now, such as that of a query which is restarted.
    known, _ = SourceView(writer.ledger.uri, "s", 1, 0).checkpoints(writer.incarnation.number)
    assert not known.any_pending(0, upto=2)


def test_old_states_incidents_and_latencies_go_but_not_present(writer: LedgerWriter) -> None:
    later = OLD + timedelta(hours=1)
    writer.append([made.state("CREATED", since=OLD), made.state("RUNNING", since=later)])
    writer.append([made.state("CREATED", "q", OLD), made.state("RUNNING", "q", NEW), made.incident(1, OLD)])
    writer.append([made.incident(2, NEW), made.incident_change(1, OLD), made.incident_change(2, NEW)])
    writer.append([made.latency(1, at=OLD), made.latency(2, at=NEW)])
    expire(writer)
    assert left(writer, schema.ExecutionStateRow, "operator", "state") == [("", "RUNNING"), ("q", "RUNNING")]
    assert left(writer, schema.IncidentRow, "incident_id") == [("i2",)]
    assert left(writer, schema.IncidentChangeRow, "incident_id") == [("i2",)]
    assert left(writer, schema.LatencyRow, "latency_ms") == [(2,)]


def test_a_ledger_in_an_object_store_is_kept_small(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket.use(monkeypatch)
    ledger = Ledger(f"{bucket.uri}/state")
    incarnation = start_incarnation(ledger, "j")
    writer = LedgerWriter(ledger, incarnation)
    ever = now() + timedelta(days=10_000)
    for number in range(1, 4):
        writer.append(epoch(number, at=ever))
    done = maintain(ledger, now(), AT_ONCE, incarnation.fence)
    assert {("epochs", "compact"), ("epochs", "vacuum")} <= {(it.table, it.what) for it in done}
    assert len([key for key in bucket.keys("state/ledger/epochs/") if "/_delta_log/" not in key]) == 1
    assert sorted(row.epoch for row in Ledger(ledger.uri).table(EpochRow).rows()) == [1, 2, 3]
    forget(ledger.uri, incarnation.number)
