"""`delta_snapshot` with `follow`: what later versions add, and each way in which a table ceases to be followed."""

import json
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, Schema, write_deltalake
from deltalake.schema import PrimitiveType
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_ext.errors import ConfigurationError, DataError, SparkExtError, StateError, UnsupportedTableError
from spark_ext.schemas.ddl import columns
from spark_ext.sources.delta_snapshot.commits import mark_of
from spark_ext.sources.delta_snapshot.source import DeltaSnapshot
from spark_ext.sources.hybrid.source import Hybrid
from spark_ext.testing.source_kit import SourceRun
from tests.sources.delta_snapshot.test_plan import append, dated, iso

LIMITS = [{"readers": "2"}]


def fill(path: Path, versions: int, *, step: int = 1, rows: int = 1) -> None:
    """The first versions of a table, each with rows from a multiple of `step` on."""
    for version in range(versions):
        append(path, version * step, rows)


def options(path: Path, **more: str) -> dict[str, str]:
    return {"uid": "orders", "path": str(path), "follow": "true", "poll_interval": "0", **more}


def started(path: Path, schema: str | None = None, *, available_now: bool = False, **more: str) -> SourceRun:
    declared = columns(schema) if schema else None
    return SourceRun(DeltaSnapshot, options(path, **more), schema=declared, limits=LIMITS, available_now=available_now)


def read(run: SourceRun) -> list[int]:
    """Read all that is there; the ids that came since the last call, in the order of the channels."""
    before = run.trace.all_rows().num_rows
    while run.epoch():
        pass
    found: list[int] = run.trace.all_rows()["id"].to_pylist()
    return found[before:]


def later(run: SourceRun) -> list[int]:
    found: list[int] = run.trace.rows("versions")["id"].to_pylist()
    return found


def refused(run: SourceRun, kind: type[SparkExtError], match: str) -> SparkExtError:
    with pytest.raises(kind, match=match) as problem:
        read(run)
    assert problem.value.do and problem.value.kept and "orders" in problem.value.operator
    return problem.value


def edit(path: Path, version: int, change: Callable[[list[dict[str, Any]]], object]) -> None:
    file = path / f"_delta_log/{version:020}.json"
    found = [json.loads(line) for line in file.read_text().splitlines() if line.strip()]
    change(found)
    file.write_text("\n".join(map(json.dumps, found)))


@pytest.mark.slow(8, "histories of a table of up to six versions, each read in twenty epochs")
@given(
    rows=st.lists(st.integers(0, 30), min_size=1, max_size=6),
    first=st.integers(0, 5),
    snapshot=st.booleans(),
    split=st.sampled_from([None, "true"]),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=6, deadline=None)
def test_each_row_once_and_in_order_while_the_table_grows(
    tmp_path_factory: pytest.TempPathFactory, rows: list[int], first: int, snapshot: bool, split: str | None, seed: int
) -> None:
    table = tmp_path_factory.mktemp("t") / "table"
    first = min(first, len(rows) - 1)
    for version in range(first + 1):
        append(table, version * 100, rows[version])
    left = iter(range(first + 1, len(rows)))
    rng = random.Random(seed)

    def grow(epoch: int) -> None:
        version = next(left, None) if rng.random() < 0.5 else None
        if version is not None:
            append(table, version * 100, rows[version])
        elif rng.random() < 0.2:
            DeltaTable(table).optimize.compact()

    start = {} if snapshot else {"starting_version": "0"}
    more = {**start, **({} if split is None else {"split": split})}
    run = SourceRun(DeltaSnapshot, options(table, **more), rng=rng)
    for epoch in range(12):
        grow(epoch)
        if rng.random() < 0.3:
            run.restart()
        if rng.random() < 0.3:
            run.plan_and_discard()
        if run.epoch(repeat=0.3) and rng.random() < 0.3:
            run.replay()
    for version in left:
        append(table, version * 100, rows[version])
    run.restart({"readers": "1"})
    read(run)
    expected = [version * 100 + n for version in range(len(rows)) for n in range(rows[version])]
    assert sorted(run.trace.all_rows()["id"].to_pylist()) == expected
    if snapshot:
        # The version is chosen with the first plan.
        assert later(run) == expected[len(expected) - len(later(run)) :]
    else:
        assert later(run) == expected


def test_the_snapshot_is_read_before_what_comes_later(tmp_path: Path) -> None:
    fill(tmp_path, 3, step=10, rows=3)
    run = started(tmp_path)
    run.epoch()
    append(tmp_path, 90, 2)
    assert later(run) == []
    assert read(run) == [90, 91]
    assert set(run.trace.batches) == {*run.trace.finished, "versions"}
    assert run.offset.stage == {
        "number": 1,
        "version": 2,
        "table": DeltaTable(tmp_path).metadata().id,
        "mark": mark_of((tmp_path / f"_delta_log/{2:020}.json").read_text()),
    }
    assert not run.offset.ended


def test_a_table_that_is_empty_at_first(tmp_path: Path) -> None:
    append(tmp_path, 0, 0)
    run = started(tmp_path)
    assert read(run) == []
    append(tmp_path, 5, 2)
    assert read(run) == [5, 6]


@pytest.mark.parametrize(
    ("given", "expected"), [("1", [10, 20]), ("3", []), ("latest", []), ("0", [0, 10, 20]), ("no snapshot", [])]
)
def test_starting_version(tmp_path: Path, given: str, expected: list[int]) -> None:
    fill(tmp_path, 3, step=10)
    plain = given == "no snapshot"
    run = started(tmp_path, snapshot="false") if plain else started(tmp_path, starting_version=given)
    assert read(run) == expected
    append(tmp_path, 30, 1)
    assert read(run) == [30]


def test_starting_timestamp(tmp_path: Path) -> None:
    base = 1_700_000_000_000
    for n in range(3):
        append(tmp_path, n * 10, 1)
        dated(tmp_path, n, base + n * 1000)
    for at, expected in [(base + 1, [10, 20]), (base + 1000, [10, 20]), (base + 2001, []), (base - 5, [0, 10, 20])]:
        assert read(started(tmp_path, starting_timestamp=iso(at))) == expected, at
    refused(started(tmp_path, starting_timestamp="2999-01-01"), ConfigurationError, "in the future")
    refused(started(tmp_path, starting_timestamp="soon"), ConfigurationError, "not a timestamp")
    checkpointed(tmp_path, 1)
    refused(started(tmp_path, starting_timestamp=iso(base + 1)), ConfigurationError, "reaches back to version 1")
    assert read(started(tmp_path, starting_timestamp=iso(base + 1001))) == [20]


def test_a_run_for_what_is_there_ends_with_its_starts_version(tmp_path: Path) -> None:
    append(tmp_path, 0, 1)
    append(tmp_path, 10, 1)
    run = started(tmp_path, version="0", available_now=True)
    run.epoch()
    append(tmp_path, 20, 1)
    read(run)
    assert later(run) == [10]
    run.restart()
    assert read(run) == [20]
    run.restart()
    assert read(run) == []


def test_a_run_for_what_is_there_does_not_recheck_its_start(tmp_path: Path) -> None:
    """The version with which it began has been cleaned up, and the job is long past it."""
    fill(tmp_path, 4)
    run = started(tmp_path, starting_version="1", available_now=True)
    assert read(run) == [1, 2, 3]
    checkpointed(tmp_path, 3)
    append(tmp_path, 9, 1)
    run.restart()
    assert read(run) == [9]


def test_limits_and_lag_within_and_across_versions(tmp_path: Path) -> None:
    fill(tmp_path, 4, step=10, rows=5)
    run = SourceRun(DeltaSnapshot, options(tmp_path, starting_version="0"), limits=[{"max_rows_per_epoch": "7"}], lag=0)
    sizes: list[int] = []
    lags = []
    while run.epoch():
        sizes.append(run.trace.all_rows().num_rows - sum(sizes))
        lags.append(run.planning.planner.lag(run.offset))
    assert (sizes, lags) == ([7, 7, 6], [13, 6, 0])
    assert later(run) == [n * 10 + m for n in range(4) for m in range(5)]
    append(tmp_path, 50, 3)
    assert run.planning.planner.lag(run.offset) == 3


def test_partition_values_and_columns_that_were_added_before(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.table({"id": [1], "k": ["a b"]}), partition_by=["k"])
    more = pa.table(
        {"id": [2], "k": [None], "x": [1.5]}, schema=pa.schema({"id": "int64", "k": "string", "x": "double"})
    )
    write_deltalake(tmp_path, more, mode="append", schema_mode="merge")
    run = started(tmp_path, starting_version="0")
    read(run)
    assert run.trace.all_rows().to_pylist() == [{"id": 1, "k": "a b", "x": None}, {"id": 2, "k": None, "x": 1.5}]


@pytest.mark.parametrize("kind", ["string", "binary", "date"])
@pytest.mark.parametrize("text", [None, ""])
def test_an_empty_partition_value_is_null_as_in_a_snapshot(tmp_path: Path, kind: str, text: str | None) -> None:
    """Some writers have the empty text for null, as Delta's protocol allows."""
    types = {"string": pa.string(), "binary": pa.binary(), "date": pa.date32()}
    write_deltalake(tmp_path, pa.table({"id": [1], "k": pa.nulls(1, types[kind])}), partition_by=["k"])
    edit(
        tmp_path, 0, lambda actions: [one["add"].update(partitionValues={"k": text}) for one in actions if "add" in one]
    )
    for run in (started(tmp_path, starting_version="0"), started(tmp_path)):
        read(run)
        assert run.trace.all_rows().to_pylist() == [{"id": 1, "k": None}]


@pytest.mark.parametrize("partition_by", [[], ["c"]])
def test_a_char_text_is_as_long_as_its_column_whoever_wrote_it(tmp_path: Path, partition_by: list[str]) -> None:
    """In the snapshot and in later versions, as Spark reads it; delta-rs writes the text without spaces at its end."""
    note = {"__CHAR_VARCHAR_TYPE_STRING": "char(4)"}
    fields = [Field("id", PrimitiveType("long")), Field("c", PrimitiveType("string"), metadata=note)]
    DeltaTable.create(tmp_path, Schema(fields), partition_by=partition_by)
    texts = pa.array([None, "ab", "äö", "abcd"])
    write_deltalake(tmp_path, pa.table({"id": pa.array(range(4)), "c": texts}), mode="append")
    run = started(tmp_path)
    assert sorted(read(run)) == [0, 1, 2, 3]
    write_deltalake(tmp_path, pa.table({"id": pa.array(range(4, 8)), "c": texts}), mode="append")
    assert sorted(read(run)) == sorted(later(run)) == [4, 5, 6, 7]
    found = {row["id"]: row["c"] for row in run.trace.all_rows().to_pylist()}
    assert found == dict(enumerate([None, "ab  ", "äö  ", "abcd"] * 2))


def test_compaction_adds_no_rows(tmp_path: Path) -> None:
    fill(tmp_path, 3)
    run = started(tmp_path, starting_version="0")
    DeltaTable(tmp_path).optimize.compact()
    append(tmp_path, 9, 1)
    assert read(run) == [0, 1, 2, 9]


def emptied(path: Path) -> None:
    DeltaTable(path).delete()


def overwritten(path: Path) -> None:
    write_deltalake(path, pa.table({"id": pa.array([77], pa.int64())}), mode="overwrite")


CHANGES: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "deleted": (lambda path: DeltaTable(path).delete("id = 1"), "DELETE", "skip"),
    "emptied": (emptied, "DELETE", "ignore_deletes"),
    "updated": (lambda path: DeltaTable(path).update({"id": "id + 50"}, predicate="id = 2"), "UPDATE", "skip"),
    "overwritten": (overwritten, "WRITE", "skip"),
}


@pytest.mark.parametrize(("change", "operation", "way"), CHANGES.values(), ids=CHANGES.keys())
def test_a_commit_that_changes_rows_is_refused(
    tmp_path: Path, change: Callable[[Path], object], operation: str, way: str
) -> None:
    append(tmp_path, 0, 4)
    append(tmp_path, 10, 2)
    run = started(tmp_path, starting_version="1")
    change(tmp_path)
    append(tmp_path, 20, 2)
    error = refused(run, StateError, rf"version 2 of the table \({operation}\)")
    assert later(run) == [10, 11] and "changes=true" in error.do and f"on_change={way}" in error.do
    run.restart()
    refused(run, StateError, "version 2 of the table")
    # Asked to pass over it, the job continues behind it.
    run.restart({"on_change": way})
    assert read(run) == [20, 21]
    # What was planned under one of them is read under another.
    run.replay({"on_change": "refuse"})


@pytest.mark.parametrize("asked", ["refuse", "ignore_deletes"])
@pytest.mark.parametrize("way", ["rows taken away", "rows brought back"])
def test_a_restore_is_no_delete_and_the_advice_doubles_no_row(tmp_path: Path, asked: str, way: str) -> None:
    append(tmp_path, 0, 4)
    if way == "rows taken away":
        append(tmp_path, 5, 5)
    else:
        emptied(tmp_path)
    run = started(tmp_path, starting_version="0", on_change=asked if way == "rows taken away" else "ignore_deletes")
    before = read(run)
    DeltaTable(tmp_path).restore(0)
    append(tmp_path, 5, 5)
    error = refused(run, StateError, r"version 2 of the table \(RESTORE\)")
    assert "ignore_deletes" not in error.do and "a target of its own" in error.do
    assert later(run) == before
    assert read(started(tmp_path, uid="other")) == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    told = started(tmp_path, uid="told", starting_version="0", on_change="skip")
    assert read(told) == [*before, 5, 6, 7, 8, 9], "what the page says of skip"


def test_deletes_alone_are_ignored_and_updates_are_not(tmp_path: Path) -> None:
    append(tmp_path, 0, 4)
    run = started(tmp_path, starting_version="0", on_change="ignore_deletes")
    emptied(tmp_path)
    append(tmp_path, 10, 4)
    DeltaTable(tmp_path).delete("id = 11")
    refused(run, StateError, r"version 3 of the table \(DELETE\) updates, replaces or deletes rows")
    assert later(run) == [0, 1, 2, 3, 10, 11, 12, 13]


def checkpointed(path: Path, upto: int) -> None:
    """Clean a log up, as writers do: a checkpoint, and no older commits."""
    DeltaTable(path).create_checkpoint()
    for version in range(upto):
        (path / f"_delta_log/{version:020}.json").unlink()


def test_a_log_that_was_cleaned_is_refused(tmp_path: Path) -> None:
    fill(tmp_path, 2)
    run = started(tmp_path, starting_version="0")
    assert read(run) == [0, 1]
    for n in range(2, 6):
        append(tmp_path, n, 1)
    checkpointed(tmp_path, 4)
    for again in (False, True):
        if again:
            run.restart()
        refused(run, StateError, "version 2 of .* is no longer in the table's log; .* from which all are there is 4")
    assert later(run) == [0, 1]


def test_a_log_cleaned_up_to_where_it_is_read_is_followed(tmp_path: Path) -> None:
    fill(tmp_path, 3)
    run = started(tmp_path, starting_version="0")
    assert read(run) == [0, 1, 2]
    checkpointed(tmp_path, 2)
    assert read(run) == []
    run.restart()
    append(tmp_path, 3, 1)
    assert read(run) == [3]


def test_a_log_cleaned_of_the_last_version_read_is_not_followed(tmp_path: Path) -> None:
    fill(tmp_path, 2)
    run = started(tmp_path, starting_version="0")
    assert read(run) == [0, 1]
    append(tmp_path, 2, 1)
    checkpointed(tmp_path, 2)
    run.restart()
    error = refused(run, StateError, "version 1 of .* has been read, and its file is no longer in the table's log")
    assert "version 2 (seek)" in error.do
    run.seek("versions", 2)
    assert read(run) == [2]
    append(tmp_path, 3, 1)
    assert read(run) == [3]


@pytest.mark.parametrize("compared", [False, True])
def test_a_log_cleaned_of_what_this_process_has_seen_is_followed(tmp_path: Path, compared: bool) -> None:
    """As by the writer of the next version, where the last one is older than the log's retention."""
    fill(tmp_path, 2)
    run = started(tmp_path, starting_version="0")
    assert run.epoch()
    if compared:
        run.restart()
        assert read(run) == []
    append(tmp_path, 2, 1)
    checkpointed(tmp_path, 2)
    assert read(run) == [2]


def test_a_start_missing_from_the_log_is_refused_before_any_read(tmp_path: Path) -> None:
    fill(tmp_path, 4)
    refused(started(tmp_path, starting_version="6"), ConfigurationError, "newest version of the table is 3")
    checkpointed(tmp_path, 3)
    run = started(tmp_path, starting_version="1")
    refused(run, StateError, "version 1 of .* is no longer in the table's log")
    assert run.trace.epochs == 0


@pytest.mark.parametrize("versions", [1, 2, 5])
@pytest.mark.parametrize("restart", [False, True])
def test_another_table_at_the_path_is_refused(tmp_path: Path, versions: int, restart: bool) -> None:
    table = tmp_path / "t"
    append(table, 0, 1)
    append(table, 1, 1)
    run = started(table, starting_version="0")
    assert read(run) == [0, 1]
    shutil.rmtree(table)
    for n in range(versions):
        append(table, 70 + n, 1)
    if restart:
        run.restart()
    refused(run, StateError, "not the table that this source has begun with")
    assert later(run) == [0, 1]


@pytest.mark.parametrize("restart", [False, True])
def test_a_table_that_was_put_back_is_refused(tmp_path: Path, restart: bool) -> None:
    table, backup = tmp_path / "t", tmp_path / "backup"
    append(table, 0, 1)
    shutil.copytree(table, backup)
    append(table, 1, 1)
    append(table, 2, 1)
    run = started(table, starting_version="0")
    assert read(run) == [0, 1, 2]
    shutil.rmtree(table)
    shutil.copytree(backup, table)
    if restart:
        run.restart()
    refused(run, StateError, "version 2 of .* has been read, and its newest version is 0")
    for n in range(3):
        append(table, 80 + n, 1)
    refused(run, StateError, "version 2 of .* has been read, and another commit has its number now")
    assert later(run) == [0, 1, 2]


def test_a_range_is_not_read_from_another_log(tmp_path: Path) -> None:
    """A task that comes later than the replacement, as after a crash: the planner is not asked again."""
    append(tmp_path / "t", 0, 1)
    append(tmp_path / "t", 1, 1)
    run = started(tmp_path / "t", starting_version="1")
    read(run)
    shutil.rmtree(tmp_path / "t")
    for n in range(3):
        append(tmp_path / "t", 70 + n, 1)
    with pytest.raises(StateError, match="another commit has its number"):
        run.replay()


@pytest.mark.parametrize(("epochs", "limit"), [(1, "2"), (1, "100"), (2, "100")])
def test_another_table_neither_continues_nor_follows_a_snapshot(tmp_path: Path, epochs: int, limit: str) -> None:
    table = tmp_path / "t"
    fill(table, 3, rows=5)
    run = SourceRun(DeltaSnapshot, options(table), limits=[{"max_rows_per_epoch": limit, "readers": "1"}])
    for _ in range(epochs):
        run.epoch()
    assert run.offset.stage["number"] == epochs - 1 and bool(run.offset.running) is (limit == "2")
    shutil.rmtree(table)
    fill(table, 3, rows=5)
    run.restart()
    refused(run, StateError, "not the table that this source has begun with")


@pytest.mark.parametrize("epochs", [1, 2])
@pytest.mark.parametrize("restart", [False, True])
def test_other_versions_of_the_table_do_not_follow_a_snapshot(tmp_path: Path, epochs: int, restart: bool) -> None:
    table, log = tmp_path / "t", tmp_path / "log"
    append(table, 0, 5)
    shutil.copytree(table / "_delta_log", log)
    append(table, 10, 1)
    append(table, 20, 1)
    run = started(table)
    for _ in range(epochs):
        run.epoch()
    assert run.offset.stage["number"] == epochs - 1 and not run.offset.running
    # Others add to the log of an older state; the data files stay.
    shutil.rmtree(table / "_delta_log")
    shutil.copytree(log, table / "_delta_log")
    for n in range(3):
        append(table, 70 + n, 1)
    if restart:
        run.restart()
    refused(run, StateError, "version 2 of .* has been read, and another commit has its number now")
    assert later(run) == []


def test_a_snapshot_is_not_continued_in_another_of_its_number(tmp_path: Path) -> None:
    """Its files may all be there, as those of the version that was put in its place."""
    append(tmp_path, 0, 5)
    append(tmp_path, 5, 5)
    run = SourceRun(DeltaSnapshot, options(tmp_path, version="0"), limits=[{"max_rows_per_epoch": "2", "readers": "1"}])
    run.epoch()
    edit(tmp_path, 0, lambda actions: actions[-1].update(later=1))
    run.restart()
    refused(run, StateError, "version 0 of .* has been read, and another commit has its number now")


def test_a_vacuumed_file_and_a_damaged_commit_are_named(tmp_path: Path) -> None:
    append(tmp_path, 0, 1)
    run = started(tmp_path, starting_version="0")
    for file in tmp_path.glob("*.parquet"):
        file.unlink()
    refused(run, DataError, "no longer exists")
    append(tmp_path, 1, 1)
    run = started(tmp_path, starting_version="1")
    (tmp_path / f"_delta_log/{1:020}.json").write_text('{"add": ')
    with pytest.raises(SparkExtError):
        read(run)


@pytest.mark.parametrize("selected", [None, "id bigint"])
def test_an_added_column_stops_the_query_and_is_read_afterwards(tmp_path: Path, selected: str | None) -> None:
    append(tmp_path, 0, 1)
    run = started(tmp_path, selected, starting_version="0")
    append(tmp_path, 1, 1)
    assert read(run) == [0, 1]
    write_deltalake(tmp_path, pa.table({"id": [9], "x": [1.5]}), mode="append", schema_mode="merge")
    error = refused(run, StateError, "version 2 of the table adds the column 'x'")
    assert "start the job again" in error.do
    run.restart()
    run.trace.schema = run.planning.arrow
    run.trace.batches.clear()
    assert read(run) == [9]
    assert run.trace.all_rows().to_pylist() == [{"id": 9} if selected else {"id": 9, "x": 1.5}]


def test_a_column_of_another_type_or_without_its_name_is_refused(tmp_path: Path) -> None:
    for name, column in [("t", {"id": pa.array(["x"])}), ("u", {"other": pa.array([1])})]:
        table = tmp_path / name
        append(table, 0, 1)
        run = started(table, starting_version="0", on_change="skip")
        read(run)
        write_deltalake(table, pa.table(column), mode="overwrite", schema_mode="overwrite")
        refused(run, StateError, "version 1 of the table (changes|drops or renames) the column 'id'")
        # A new start has the new columns, which older rows do not have.
        run.restart()


def test_a_feature_that_is_added_is_refused(tmp_path: Path) -> None:
    append(tmp_path, 0, 1)
    run = started(tmp_path, starting_version="0")
    read(run)
    append(tmp_path, 1, 1)
    wanted = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["x"], "writerFeatures": ["x"]}
    edit(tmp_path, 1, lambda actions: actions.append({"protocol": wanted}))
    with pytest.raises(UnsupportedTableError, match="from version 1 on, the table needs x"):
        read(run)


BAD = {
    "changes": ({"changes": "true", "follow": "false"}, "changes needs follow=true"),
    "snapshot": ({"snapshot": "false", "follow": "false"}, "snapshot needs follow=true"),
    "starting_version": ({"starting_version": "1", "follow": "false"}, "starting_version needs follow=true"),
    "on_change": ({"on_change": "skip", "follow": "false"}, "on_change needs follow=true"),
    "poll_interval": ({"poll_interval": "5", "follow": "false"}, "poll_interval needs follow=true"),
    "both starts": ({"starting_version": "1", "starting_timestamp": "2024-01-01"}, "exclude each other"),
    "start and snapshot": ({"starting_version": "1", "snapshot": "true"}, "begins without a snapshot"),
    "start and version": ({"starting_version": "1", "version": "1"}, "version is of the snapshot"),
    "no snapshot and timestamp": ({"snapshot": "false", "timestamp": "2024-01-01"}, "timestamp is of the snapshot"),
    "negative": ({"starting_version": "-1"}, "0 or more, or latest"),
    "word": ({"starting_version": "newest"}, "starting_version"),
    "skip and changes": ({"changes": "true", "on_change": "skip"}, "on_change and changes exclude"),
    "other": ({"on_change": "ignore_changes"}, "on_change"),
}


@pytest.mark.parametrize(("given", "message"), BAD.values(), ids=BAD.keys())
def test_options_that_do_not_go_together(tmp_path: Path, given: dict[str, str], message: str) -> None:
    plain = {"uid": "orders", "path": str(tmp_path), "follow": "true"}
    with pytest.raises(ConfigurationError, match=message):
        DeltaSnapshot({**plain, **given})


def test_what_it_reads_is_its_identity(tmp_path: Path) -> None:
    plain = {"uid": "orders", "path": str(tmp_path)}
    assert DeltaSnapshot(plain).options.identity() == {"path": str(tmp_path)}
    followed = DeltaSnapshot({**plain, "follow": "true", "starting_version": "3", "changes": "true"})
    of_options = {"follow": "True", "changes": "True", "starting_version": "3"}
    assert followed.options.identity() == {"path": str(tmp_path), **of_options}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"follow": "true"}, {"follow": "false"}),
        ({"follow": "true"}, {"follow": "true", "starting_version": "0"}),
        ({"follow": "true", "starting_version": "0"}, {"follow": "true"}),
        ({"follow": "true", "starting_version": "0"}, {"follow": "false"}),
    ],
)
def test_a_source_is_not_continued_in_another_way(
    tmp_path: Path, before: dict[str, str], after: dict[str, str]
) -> None:
    """Outside of a job, which compares the options before it starts."""
    append(tmp_path, 0, 5)
    append(tmp_path, 5, 5)
    plain = {"uid": "orders", "path": str(tmp_path)}
    for epochs in (1, 10):
        run = SourceRun(DeltaSnapshot, {**plain, **before}, limits=[{"readers": "1", "max_rows_per_epoch": "2"}])
        for _ in range(epochs):
            run.epoch()
        run._options = {**plain, **after}
        run.restart({})
        with pytest.raises(ConfigurationError, match="has begun with"):
            run.epoch()


def test_an_unfollowed_snapshot_can_be_followed_before_it_ends(tmp_path: Path) -> None:
    append(tmp_path, 0, 3)
    append(tmp_path, 3, 3)
    plain = {"uid": "orders", "path": str(tmp_path)}
    run = SourceRun(DeltaSnapshot, plain, limits=[{"readers": "1", "max_rows_per_epoch": "2"}])
    run.epoch()
    append(tmp_path, 6, 3)
    run._options = options(tmp_path)
    run.restart({})
    read(run)
    assert sorted(run.trace.all_rows()["id"].to_pylist()) == list(range(9))


def test_an_older_position_is_read_again(tmp_path: Path) -> None:
    """A job that is restored to an older savepoint: the positions are valid as long as the log has them."""
    append(tmp_path, 0, 1)
    run = started(tmp_path)
    read(run)
    older = run.offset
    append(tmp_path, 1, 1)
    append(tmp_path, 2, 1)
    assert read(run) == [1, 2]
    run.offset = older
    run.restart()
    run.trace.batches.pop("versions")
    assert read(run) == [1, 2]
    run.offset = older
    append(tmp_path, 3, 1)
    checkpointed(tmp_path, 2)
    run.restart()
    refused(run, StateError, "version 1 of .* is no longer in the table's log")


def test_hybrid_takes_what_follows_as_a_stage_of_its_own(tmp_path: Path) -> None:
    append(tmp_path, 0, 2)
    append(tmp_path, 10, 2)
    stages = {"uid": "orders", "stages": "past,live", "past.version": "0"}
    stages |= {"live.follow": "true", "live.poll_interval": "0"}
    for stage in ("past", "live"):
        stages |= {f"{stage}.format": "delta_snapshot", f"{stage}.path": str(tmp_path)}
    with pytest.raises(ConfigurationError, match="stage 'live' has stages of its own"):
        Hybrid(stages)
    run = SourceRun(Hybrid, {**stages, "live.starting_version": "1"}, limits=LIMITS)
    assert read(run) == [0, 1, 10, 11]
    append(tmp_path, 20, 1)
    assert read(run) == [20]


def test_seek(tmp_path: Path) -> None:
    fill(tmp_path, 4, step=10, rows=3)
    run = started(tmp_path, starting_version="0")
    read(run)
    for position, expected in [(2, [20, 21, 22, 30, 31, 32]), ([3, 0, 2], [32]), ([1, 1, 0], [20]), (4, [])]:
        run.trace.batches.clear()
        run.seek("versions", position)
        assert read(run)[: len(expected)] == expected
        if expected:
            run.replay()
    for wrong in (-1, 5, [1, 2, 0], [1, 0, 4], [1], "1", [4, 0, 1]):
        with pytest.raises(ConfigurationError):
            run.seek("versions", wrong)


def test_looks_for_a_new_version_no_more_often_than_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append(tmp_path, 0, 1)
    run = started(tmp_path, starting_version="0", poll_interval="1h")
    assert read(run) == [0]
    append(tmp_path, 1, 1)
    assert read(run) == []
    now = time.monotonic()
    assert isinstance(run.source, DeltaSnapshot)
    monkeypatch.setattr(run.source._followed.reading._follower, "_clock", lambda: now + 3601)
    assert read(run) == [1]
