"""The flights example: its preparation of the data, and the whole of it."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pandas as pd
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from spark_ext.script import load_function
from spark_ext.views.status import read_status
from tests.support.scripts import scripts_undone

SCRIPT = Path(__file__).parents[2] / "examples" / "flights.py"
pytestmark = pytest.mark.slow(0.5, "reads all flights of a year")
FLIGHTS, WITHOUT_WEATHER = 336_776, 1_556


@pytest.fixture(scope="module")
def example() -> Iterator[ModuleType]:
    with scripts_undone(), pytest.MonkeyPatch.context() as patch:
        found = sys.modules[load_function(SCRIPT, "job").__module__]
        for name in ("package_flights", "package_weather"):
            patch.setattr(found, name, getattr(found, name)().copy)
        yield found


@pytest.fixture(scope="module")
def data(example: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("flights") / "data"
    example.prepare(folder)
    return folder


@pytest.fixture
def two_weeks(example: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package's tables have only the first week of two months."""
    for name in ("flights", "weather"):
        whole = getattr(example, f"package_{name}")()
        part = whole[(whole["month"] <= 2) & (whole["day"] <= 7)]
        monkeypatch.setattr(example, f"package_{name}", lambda part=part: part)


def test_time_hour_is_utc_and_each_flight_has_a_departure(example: ModuleType) -> None:
    flights = example.package_flights()
    assert len(flights) == FLIGHTS
    assert flights["departure"].notna().all()
    local = flights["departure"].dt.tz_convert("America/New_York")
    assert (local.dt.hour * 100 + local.dt.minute == flights["sched_dep_time"]).all()
    assert (local.dt.month == flights["month"]).all()


@pytest.mark.slow(3, "prepares all flights of a year")
def test_no_row_is_later_than_the_watermark_allows(example: ModuleType, data: Path) -> None:
    allowed = pd.Timedelta(example.DELAY)
    for folder, column in (("flights", "departure"), ("flights", "time_hour"), ("weather", "time_hour")):
        files = sorted((data / folder).iterdir())
        times = pd.concat([pq.read_table(file, columns=[column]).to_pandas()[column] for file in files])
        assert (times.cummax() - times).max() < allowed, (folder, column)


def test_an_airport_has_one_weather_row_per_hour(example: ModuleType) -> None:
    assert not example.package_table("weather").duplicated(["time_hour", "origin"]).any()


@pytest.mark.usefixtures("two_weeks")
def test_prepared_files_are_left_alone_unless_half_prepared(
    example: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = example.write_months

    def killed(table: pd.DataFrame, folder: Path) -> None:
        written(table.head(10), folder)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(example, "write_months", killed)
        with pytest.raises(KeyboardInterrupt):
            example.prepare(tmp_path)
    assert not (tmp_path / "flights").exists()
    example.prepare(tmp_path)
    before = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*.parquet")}
    example.prepare(tmp_path)
    assert {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*") if file.is_file()} == before
    assert len(before) == 4


@pytest.mark.usefixtures("two_weeks")
def test_a_difference_of_one_row_or_value_is_seen(example: ModuleType) -> None:
    expected = example.Outcome.by_pandas()
    console = Console(quiet=True)
    assert example.check(expected, expected, console)
    fewer = example.Outcome(expected.daily, expected.hourly.iloc[1:], expected.with_weather)
    assert not example.check(fewer, expected, console)
    other = expected.daily.assign(mean_dep_delay=expected.daily["mean_dep_delay"] + 1e-6)
    assert not example.check(example.Outcome(other, expected.hourly, expected.with_weather), expected, console)
    twice = pd.concat([expected.with_weather, expected.with_weather.tail(1)])
    assert not example.check(example.Outcome(expected.daily, expected.hourly, twice), expected, console)


@pytest.mark.slow(50, "336,776 rows through three queries")
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("spark")
def test_the_whole_year_and_then_nothing(
    example: ModuleType, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`main` in this process, whose session it finds, and at last as a script, with one of its own."""
    out = tmp_path / "out"
    monkeypatch.setattr(sys, "argv", ["flights.py", "--out", str(out), "--data", str(data)])
    assert example.main() == 0
    said = capsys.readouterr().out
    assert "job 'flights' FINISHED" in said
    assert said.count("equal to pandas, row by row") == 3 and "NOT equal" not in said
    outcome = example.Outcome.read(out)
    assert outcome.counts() == {
        "flights in daily windows": FLIGHTS, "flights in hourly windows": FLIGHTS,
        "flights with weather or nulls": FLIGHTS, "daily windows": 5_442, "hourly windows": 60_142,
        "flights that found weather": FLIGHTS - WITHOUT_WEATHER,
    }  # fmt: skip
    assert list(outcome.daily.columns) == ["day", "carrier", "flights", "mean_dep_delay"]
    assert list(outcome.hourly.columns) == ["hour", "carrier", "flights", "mean_dep_delay"]
    assert (out / "delays.png").read_bytes().startswith(b"\x89PNG")

    status = read_status(str(out / "state")).to_json()
    # On a busy machine three queries may wait for two slots long enough to be reported.
    incidents = [one for one in status["incidents"] if one["type"] != "scheduling"]
    assert (status["state"], status["incarnation"], incidents) == ("FINISHED", 1, [])
    assert {query["uid"]: query["finished"] for query in status["queries"]} == dict.fromkeys(example.KEYS, True)
    channels = {uid: count for query in status["queries"] for uid, count in query["channels_finished"].items()}
    assert channels == dict.fromkeys(("flights-daily", "flights-hourly", "flights-with_weather", "weather"), 12)

    before = tables(out)
    assert example.main() == 0
    said = capsys.readouterr().out
    assert "job 'flights' FINISHED: 0 rows in 0 epochs" in said
    assert "finished: the job had ended before, 0 rows read" in said
    assert tables(out) == before
    command = [sys.executable, str(SCRIPT), "--out", str(out), "--data", str(data)]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=True)
    assert "finished: the job had ended before, 0 rows read" in ran.stdout
    example.delete_outputs(out)
    assert not list(out.iterdir())


def tables(out: Path) -> dict[str, int]:
    return {
        str(file): file.stat().st_size
        for name in ("daily", "hourly", "with_weather")
        for file in (out / name).rglob("*")
        if file.is_file()
    }
