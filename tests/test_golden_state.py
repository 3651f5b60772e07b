"""A job that version 0.1.0 was killed in is continued exactly once: its state directory is kept in `golden`."""

import json
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

import spark_ext as sx
from tests.golden.make_state import GENERATED_ROWS, KILLED_AT, READINGS, TRIPS, alone, job

GOLDEN = Path(__file__).parent / "golden"
KILLED = dict(zip(KILLED_AT, (TRIPS, READINGS), strict=True))
"""Queries that were killed half-way; input files, and rows in each."""


@pytest.fixture(params=["0.1.0"])
def folder(request: pytest.FixtureRequest) -> Iterator[Path]:
    """The folder that the version left; unpacking restores the times of modification too."""
    with alone() as place:
        with tarfile.open(GOLDEN / request.param / "state.tar.gz") as packed:
            packed.extractall(place, filter="data")
        yield place


def test_a_job_killed_half_way_is_continued_exactly_once(spark: SparkSession, folder: Path) -> None:
    expected = computed(folder)
    epochs = ledger(folder, "epochs")
    flags = ledger(folder, "finished").query("kind == 'channel' and query != 'generated'")
    assert_killed_half_way(folder, epochs, flags)
    for query, channel in zip(flags["query"], flags["channel"], strict=True):
        replace_rows(folder / "data" / {"hourly": "trips", "copied": "readings"}[query] / channel)

    result = job(spark, folder).run(progress=False)

    assert result.finished and result.incarnation == 3
    assert [query.finished_before for query in result.queries] == [True, False, False]
    for query, found in written(folder).items():
        pd.testing.assert_frame_equal(found, expected[query], obj=query)
    for query, (files, per_file) in KILLED.items():
        assert rows_read(folder, query) == files * per_file
        assert [source.channels_finished for source in result.query(query).sources] == [files]

    links = sorted(file.name for file in (folder / "out" / "copied").glob("*.parquet"))
    assert links == names_in_log(folder / "out" / "copied")

    again = job(spark, folder).run(progress=False)

    assert again.finished and again.rows == again.epochs == 0
    assert all(query.finished_before for query in again.queries)
    for query, found in written(folder).items():
        pd.testing.assert_frame_equal(found, expected[query], obj=query)


@pytest.mark.parametrize(
    ("part", "named"),
    [
        ("ledger/finished", "ledger/finished"),
        ("queries/hourly/checkpoint", "the ledger has committed epochs up to 2"),
        ("queries/copied/checkpoint/offsets/1", "restore offsets/1"),
    ],
)
def test_a_state_without_one_of_its_parts_is_refused(spark: SparkSession, folder: Path, part: str, named: str) -> None:
    before = written(folder)
    lost = folder / "state" / part
    shutil.rmtree(lost) if lost.is_dir() else lost.unlink()

    with pytest.raises(sx.errors.StateError, match=named):
        job(spark, folder).start()

    for query, found in written(folder).items():
        pd.testing.assert_frame_equal(found, before[query], obj=query)


def assert_killed_half_way(folder: Path, epochs: pd.DataFrame, flags: pd.DataFrame) -> None:
    """Each query that was killed has flags, rows left to read, and an epoch that its sink has and Spark has not."""
    for query, (files, per_file) in KILLED.items():
        mine = epochs[epochs["query"] == query]
        planned, committed = (
            max(int(file.name) for file in place.iterdir() if file.name.isdigit())
            for place in (folder / "state" / "queries" / query / "checkpoint" / log for log in ("offsets", "commits"))
        )
        assert mine["epoch"].max() == committed == planned - 1
        assert 0 < (flags["query"] == query).sum() < files
        assert 0 < mine["input_rows"].sum() < files * per_file
        assert epoch_of_sink(folder / "out" / query) == planned


def rows_read(folder: Path, query: str) -> int:
    """Input rows of all epochs of a query, whichever version ran them; markers of the end of input are not counted."""
    epochs = ledger(folder, "epochs").query("query == @query")
    assert list(epochs["epoch"].sort_values()) == list(range(len(epochs)))
    return int(epochs.loc[~epochs["offsets"].str.contains('"marker":[1-9]'), "input_rows"].sum())


def epoch_of_sink(target: Path) -> int:
    """The newest epoch in a target's own log."""
    if (target / "_delta_log").is_dir():
        newest = max((target / "_delta_log").glob("*.json"))
        entries = [entry.get("txn", {}) for entry in map(json.loads, newest.read_text().splitlines())]
        return next(int(entry["version"]) for entry in entries if entry.get("appId", "").startswith("spark_ext:"))
    newest = max((target / "_epochs").rglob("*.jsonl"))
    return max(int(entry["epoch"]) for entry in map(json.loads, newest.read_text().splitlines()) if "epoch" in entry)


def replace_rows(file: Path) -> None:
    """Put another row into an input file: it comes out if the file is opened again."""
    if file.suffix == ".csv":
        file.write_text("at,kind,amount\n2024-01-01T00:00:00+00:00,again,1\n")
    else:
        pq.write_table(pa.table({"id": [-1], "value": [-1.0], "file": [-1]}), file)


def computed(folder: Path) -> dict[str, pd.DataFrame]:
    trips = pd.concat(pd.read_csv(file, parse_dates=["at"]) for file in (folder / "data" / "trips").iterdir())
    trips["hour"] = trips["at"].dt.floor("h").astype("datetime64[us, UTC]")
    hourly = trips.groupby(["hour", "kind"])["amount"].agg(rows="size", amount="sum")
    copied = pd.concat(pd.read_parquet(file) for file in (folder / "data" / "readings").iterdir())
    numbers = pd.DataFrame({"id": range(GENERATED_ROWS)})
    generated = numbers.assign(channel=(numbers["id"] % 3).astype("int32"), seq=numbers["id"] // 3)
    return in_order({"generated": generated, "hourly": hourly.reset_index(), "copied": copied})


def written(folder: Path) -> dict[str, pd.DataFrame]:
    """The committed rows of each query, repeated ones included."""
    out = folder / "out"
    rows = {
        "generated": DeltaTable(out / "generated").to_pandas()[["id", "channel", "seq"]],
        "hourly": DeltaTable(out / "hourly").to_pandas(),
        "copied": pd.concat(pd.read_parquet(out / "copied" / "_files" / name) for name in names_in_log(out / "copied")),
    }
    return in_order(rows)


def in_order(rows: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    return {query: found.sort_values(list(found.columns), ignore_index=True) for query, found in rows.items()}


def names_in_log(target: Path) -> list[str]:
    entries = [json.loads(line) for log in (target / "_epochs").rglob("*.jsonl") for line in log.open()]
    return sorted(file["path"] for entry in entries for file in entry.get("files", ()))


def ledger(folder: Path, table: str) -> pd.DataFrame:
    """A table of the job's ledger; a row that is there twice is one."""
    rows: pd.DataFrame = DeltaTable(folder / "state" / "ledger" / table).to_pandas()
    return rows.drop_duplicates(ignore_index=True)
