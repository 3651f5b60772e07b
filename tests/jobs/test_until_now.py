"""Runs that end with what is there, in Spark: linked queries over a growing input, run again and again."""

import importlib
import shutil
import sys
import threading
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

import spark_ext as sx
from spark_ext.errors import ConfigurationError, JobRunningError
from spark_ext.jobs.job import Job
from spark_ext.jobs.result import JobResult
from spark_ext.ledger.schema import IncidentRow
from spark_ext.model.lifecycle import State
from tests.support.jobs import JobHarness, expected
from tests.support.refusals import refused
from tests.support.waiting import until


class Hourly:
    """A job over a file that says how many rows there are: into an exchange, and from there into a folder."""

    def __init__(self, lab: JobHarness) -> None:
        self.lab = lab
        self.grow(0)

    def grow(self, rows: int) -> None:
        (self.lab.folder / "count").write_text(str(rows))

    def job(self) -> Job:
        lab = self.lab
        made = sx.Job(lab.spark, "lab", state=lab.folder / "state")
        x = made.exchange("x", partitions=2, max_in_flight=4)
        reader = lab.spark.readStream.format("growing").option("uid", "in").option("log", lab.log)
        made.add("first", x.write(reader.options(path=str(lab.folder / "count"), max_rows_per_epoch=3).load()))
        lab.add(made, x.read("x-in"), query="second", out="out")
        return made

    def run(self, emit: str = "closed") -> JobResult:
        return self.job().run(until="now", emit=emit, progress=False)  # type: ignore[arg-type]

    def committed(self) -> list[int]:
        """Up to where the source has been told that its rows are safe, each time."""
        return [event["positions"]["0"] for event in self.lab.events("committed")]


@pytest.mark.slow(15, "three runs")
def test_files_that_have_changed_since_they_were_read_are_named_and_counted(lab: JobHarness) -> None:
    """In each later run, by what the ledger knows of them; neither their rows nor their number of rows change."""
    place = lab.folder / "files"
    place.mkdir()
    for name in "abc":
        (place / f"{name}.csv").write_text(f"{name},1,2024-01-01\n")
    pq.write_table(pa.table({"channel": ["d"], "n": [1], "ts": [datetime(2024, 1, 1)]}), place / "d.parquet")
    files = lab.spark.readStream.format("files").schema("channel string, n bigint, ts timestamp")
    files = files.options(uid="files", path=str(place), watch="true")

    def run() -> list[str]:
        known = len(lab.ledger.table(IncidentRow).rows())
        lab.job(files.load()).run(until="now", progress=False)
        assert lab.numbers() == [(name, 1) for name in "abcd"]
        return [row.what for row in lab.ledger.table(IncidentRow).rows()[known:] if row.type == "changed_input"]

    assert run() == []
    with (place / "a.csv").open("a") as file:
        file.write("a,2,2024-01-01\n")
    (place / "b.csv").write_text("b,7,2024-01-01\n")
    pq.write_table(pa.table({"channel": ["d"], "n": [2], "ts": [datetime(2024, 1, 1)]}), place / "d.parquet")
    (place / "c.csv").unlink()
    words = "source 'files' has read 3 channels that have changed since: a.csv, b.csv, d.parquet"
    assert run() == [words] == run()


@pytest.mark.core
@pytest.mark.slow(30, "six runs of two queries")
def test_repeated_runs_read_what_is_new_and_end_when_asked_to(lab: JobHarness) -> None:
    hourly = Hourly(lab)
    hourly.grow(7)
    first = hourly.run()
    assert (first.state, first.finished, first.caught_up) == (State.SUSPENDED, False, True)
    assert lab.numbers() == expected(7)
    assert hourly.committed()[-1] == 7, "the last epoch is acknowledged as well"
    assert not lab.events("end_of_input", "close")
    epochs = [len(list((lab.checkpoint(query) / "commits").glob("[0-9]*"))) for query in ("first", "second")]
    nothing = hourly.run()
    assert (nothing.state, nothing.rows, nothing.epochs) == (State.SUSPENDED, 0, 0)
    assert epochs == [len(list((lab.checkpoint(query) / "commits").glob("[0-9]*"))) for query in ("first", "second")]
    hourly.grow(9)
    last = hourly.run(emit="all")
    assert (last.state, last.rows) == (State.FINISHED, 4)
    assert lab.numbers() == expected(9)
    hourly.grow(20)
    assert hourly.run().finished
    assert lab.numbers() == expected(9), "what has finished reads nothing"


@pytest.mark.core
def test_a_source_that_ends_beside_another_is_closed_in_its_run(lab: JobHarness) -> None:
    count = lab.folder / "count"

    def run(rows: int) -> JobResult:
        count.write_text(str(rows))
        reader = lab.spark.readStream.format("growing").options(uid="live", log=lab.log, path=str(count))
        own = sx.with_watermark(lab.source("in", counts="50"), "ts", "1 minute")
        frame = own.select("channel", "n").union(reader.load().selectExpr("'live' channel", "n"))
        return lab.job(frame).run(until="now", progress=False)

    assert run(7).state is State.SUSPENDED
    before = [one for one in lab.events() if one["uid"] == "in"]
    assert [one["event"] for one in before][-3:] == ["end_of_input", "committed", "close"] and before[-2]["final"]
    assert run(9).rows == 2
    assert [one for one in lab.events() if one["uid"] == "in"] == before
    assert lab.numbers() == sorted([*expected(50), *(("live", n) for n in range(9))])


def test_the_last_run_over_a_source_of_sparks_own_ends(lab: JobHarness) -> None:
    (lab.folder / "in").mkdir()

    def run(arrived: int, emit: str = "closed") -> JobResult:
        (lab.folder / "in" / f"{arrived}.json").write_text(f'{{"id": {arrived}}}')
        rows = lab.spark.readStream.schema("id bigint").json(str(lab.folder / "in"))
        job = sx.Job(lab.spark, "own", state=lab.folder / "state")
        job.add("q", rows.writeStream.format("delta_2pc").options(uid="out", path=str(lab.folder / "out")))
        return job.run(until="now", emit=emit, progress=False)  # type: ignore[arg-type]

    def written() -> list[int]:
        return sorted(DeltaTable(lab.folder / "out").to_pyarrow_table()["id"].to_pylist())

    assert run(1).state is State.SUSPENDED
    last = run(2, emit="all")
    assert (last.state, last.rows) == (State.FINISHED, 1)
    assert run(3).finished
    assert written() == [1, 2], "what has finished reads nothing"


@pytest.mark.slow(20, "three runs of two queries")
def test_the_last_run_reads_what_waits_for_others_before_the_end(lab: JobHarness) -> None:
    def job() -> Job:
        made = sx.Job(lab.spark, "lab", state=lab.folder / "state")
        made.add("first", watched(lab, "first"))
        return made.add("second", lambda: watched(lab, "second"), after="first")

    arrive(lab, "first", 1)
    arrive(lab, "second", 2)
    assert job().run(until="now", progress=False).caught_up and not lab.rows("out-second")
    arrive(lab, "first", 3)
    last = job().run(until="now", emit="all", progress=False)
    assert (last.state, last.rows) == (State.FINISHED, 2)
    assert written(lab, "first") == [1, 3] and written(lab, "second") == [2]


@pytest.mark.slow(30, "two runs of four queries")
def test_paused_input_is_left_to_a_later_run_the_rest_is_read(lab: JobHarness) -> None:
    hourly = Hourly(lab)
    for uid in ("free", "paused"):
        arrive(lab, uid, 1)

    def job() -> Job:
        return hourly.job().add("free", watched(lab, "free")).add("paused", watched(lab, "paused"))

    assert job().run(until="now", progress=False).caught_up
    hourly.grow(20)
    for uid in ("free", "paused"):
        arrive(lab, uid, 2)
    for target in ("query:paused", "query:second"):
        job().control.pause(target)
    result = job().run(until="now", progress=False)
    assert (result.state, result.caught_up) == (State.CANCELED, False)
    states = {one.uid: one.state for one in result.queries}
    # "first" waits for "second", at an exchange that is full.
    assert states == dict.fromkeys(("first", "second", "paused"), State.CANCELED) | {"free": State.SUSPENDED}
    assert "query:paused" in result.query("paused").reason
    assert written(lab, "free") == [1, 2] and written(lab, "paused") == [1] and not lab.rows()
    for target in ("query:paused", "query:second"):
        job().control.resume(target)
    assert job().run(until="now", progress=False).caught_up
    assert written(lab, "paused") == [1, 2] and lab.numbers() == expected(20)


@pytest.mark.slow(30, "five runs")
def test_a_source_without_new_rows_does_not_hold_windows_back(lab: JobHarness) -> None:
    """Each has its own watermark, which goes on from run to run."""
    table = lab.folder / "table"

    def run(**arrived: str) -> dict[int, int]:
        for uid, text in arrived.items():
            (lab.folder / uid).mkdir(exist_ok=True)
            at = pa.array([datetime.fromisoformat(f"2026-03-01T{text}+00:00")], pa.timestamp("us", "UTC"))
            pq.write_table(pa.table({"at": at}), lab.folder / uid / f"{text}.parquet")
        reader = lab.spark.readStream.format("files").schema("at timestamp").option("watch", "true")
        left, right = (reader.option("uid", uid).load(str(lab.folder / uid)) for uid in ("left", "right"))
        both = sx.with_watermark(left, "at", "0 minutes").union(sx.with_watermark(right, "at", "0 minutes"))
        hourly = both.groupBy(F.window("at", "1 hour")).count()
        hourly = hourly.select(F.expr("unix_seconds(window.start) div 3600 % 24").alias("hour"), "count")
        job = sx.Job(lab.spark, "lab", state=lab.folder / "state")
        job.add("q", hourly.writeStream.format("delta_2pc").options(uid="out", path=str(table)))
        assert job.run(until="now", progress=False).caught_up
        rows = DeltaTable(table).to_pyarrow_table().to_pylist() if arrived else []
        return {row["hour"]: row["count"] for row in rows}

    assert run(left="08:10", right="09:20") == {}
    assert run(left="09:30") == {8: 1}, "right has come to 09:20"
    assert run(right="10:30") == {8: 1}, "left has come to 09:30"
    epochs = len(list((lab.checkpoint() / "commits").glob("[0-9]*")))
    run()
    assert epochs == len(list((lab.checkpoint() / "commits").glob("[0-9]*"))), "without new rows there is no epoch"
    assert run(left="10:40") == {8: 1, 9: 2}


def arrive(lab: JobHarness, uid: str, number: int) -> None:
    (lab.folder / uid).mkdir(exist_ok=True)
    pq.write_table(pa.table({"n": pa.array([number], pa.int64())}), lab.folder / uid / f"{number}.parquet")


def watched(lab: JobHarness, uid: str) -> DataStreamWriter:
    """A query over the files of a folder that has no end."""
    reader = lab.spark.readStream.format("files").schema("n bigint").options(uid=uid, watch="true")
    rows = reader.load(str(lab.folder / uid))
    return rows.writeStream.format("folder").options(uid=f"{uid}-out", path=str(lab.folder / f"out-{uid}"))


def written(lab: JobHarness, uid: str) -> list[int]:
    return sorted(row["n"] for row in lab.rows(f"out-{uid}"))


def test_a_source_that_always_has_more_is_refused(lab: JobHarness) -> None:
    with refused(ConfigurationError, "query 'q'", "source 'in' (numbers) has no end and does not say"):
        lab.job(lab.source(live="true")).run(until="now", progress=False)
    assert not lab.rows()


@pytest.mark.slow(15, "two runs, one after the other")
def test_while_another_run_is_under_way_it_is_refused_or_waits(lab: JobHarness) -> None:
    hourly = Hourly(lab)
    hourly.grow(2)
    running = hourly.job().start()
    with refused(JobRunningError, "job 'lab'", "is running as incarnation 1"):
        hourly.run()
    found: list[JobResult] = []

    def wait() -> None:
        found.append(hourly.job().run(until="now", if_running="wait", progress=False))

    waiting = threading.Thread(target=wait)
    waiting.start()
    until(lambda: lab.numbers() == expected(2), "the first run has read what was there")
    hourly.grow(5)
    running.stop()
    waiting.join(300)
    assert [result.state for result in found] == [State.SUSPENDED]
    assert lab.numbers() == expected(5)


SOURCE = """
from pathlib import Path
import pyarrow as pa
from spark_ext.sources.contract import Advance, Channel, ChannelSource, SourceOptions
from {helper} import shifted
class Options(SourceOptions):
    folder: str
class Shifted(ChannelSource):
    options_type = Options
    bounded = False
    @classmethod
    def name(cls):
        return "shifted"
    def schema(self):
        return "channel string, n bigint"
    def discover(self):
        return [Channel(path.name, 0) for path in sorted(Path(self.options.folder).glob("*"))]
    def latest(self, channel):
        return 1
    def advance(self, channel, start, limit):
        return Advance(1, finished=True, rows=1)
    def read(self, channel, start, end):
        yield pa.RecordBatch.from_pydict({{"channel": [channel.id], "n": [shifted(int(channel.id), {more})]}})
"""


@pytest.mark.slow(20, "runs a job three times")
def test_code_that_is_sent_by_value_is_that_of_each_start(
    lab: JobHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the class, and of a module that it uses, in one session, whose workers live on; what was read stays."""
    place, code = tmp_path / "in", tmp_path / "code"
    place.mkdir()
    code.mkdir()
    monkeypatch.syspath_prepend(str(code))
    own, helper = f"source_{tmp_path.name}", f"helper_{tmp_path.name}"

    def run(number: int, by: int, more: int) -> None:
        (place / str(number)).touch()
        for name, text in (
            (helper, f"def shifted(n, more):\n    return n + {by} + more\n"),
            (own, SOURCE.format(helper=helper, more=more)),
        ):
            (code / f"{name}.py").write_text(text)
            shutil.rmtree(code / "__pycache__", ignore_errors=True)
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        sx.register(lab.spark, importlib.import_module(own).Shifted)
        frame = lab.spark.readStream.format("shifted").options(uid="in", folder=str(place)).load()
        lab.job(frame).run(until="now", progress=False)

    run(1, by=10, more=0)
    run(2, by=20, more=0)
    run(3, by=20, more=100)
    assert lab.numbers() == [("1", 11), ("2", 22), ("3", 123)]
