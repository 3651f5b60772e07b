"""`hybrid`: stages without a gap or an overlap, by the contract kit and in the corners that are its own."""

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import hypothesis
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from hypothesis import strategies as st

from spark_ext.errors import ConfigurationError
from spark_ext.schemas.ddl import columns
from spark_ext.sources.contract import ChannelSource, Committed
from spark_ext.sources.datagen import SCHEMA, DataGen
from spark_ext.sources.hybrid.cutover import extended
from spark_ext.sources.hybrid.source import Hybrid
from spark_ext.sources.staged import Cutover
from spark_ext.spark.session import formats, registry
from spark_ext.testing.source_contract import SourceContract, SourceWorld
from spark_ext.testing.source_kit import SourceRun, drive
from spark_ext.testing.source_queries import SourceQueryContract
from tests.servers.postgres import PASSWORD, Database

ROWS = (30, 12, 5, 9)  # rows of each channel of the live side: a log with four partitions
HISTORY = (17, 12, 0, 3)  # how many of them the history holds already
SPARK = columns("id bigint, channel int, seq bigint, ts timestamp, key bigint, value double, tag string")
"""The columns, for a user who declares them because the history cannot tell."""


def log(rows_of: tuple[int, ...] = ROWS) -> list[dict[str, Any]]:
    whole = DataGen({"uid": "log", "rows_of": ",".join(map(str, rows_of))})
    return [
        row
        for channel, count in zip(whole.discover(), rows_of, strict=True)
        for batch in whole.read(channel, 0, count)
        for row in batch.to_pylist()
    ]


def history(folder: Path, files: int = 5) -> Path:
    rows = [row for row in log() if row["seq"] < HISTORY[row["channel"]]]
    random.Random(3).shuffle(rows)
    folder.mkdir(parents=True)
    for number in range(files):
        pq.write_table(pa.Table.from_pylist(rows[number::files], SCHEMA), folder / f"{number}.parquet")
    return folder


class LogWorld(SourceWorld):
    def __init__(self, folder: Path, **options: str) -> None:
        self.given = {"uid": "hybrid", "stages": "history,live", "history.format": "files"}
        self.given |= {"history.path": str(history(folder)), "history.seam": "channel:seq"}
        self.given |= {"live.format": "datagen", "live.rows_of": ",".join(map(str, ROWS)), **options}

    def source(self, **options: str) -> ChannelSource:
        return Hybrid({**self.given, **options})

    def expected(self) -> list[dict[str, Any]]:
        return log()


class ThreeStages(SourceWorld):
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for part in range(3):
            amounts = [float(n) for n in range(part * 7, part * 7 + 7)]
            write_deltalake(folder / "t", pa.table({"n": range(part * 7, part * 7 + 7), "x": amounts}), mode="append")
            ids = range(100 + part * 4, 104 + part * 4)
            history_file = pa.table({"id": ids, "amount": amounts[:4], "other": ["-"] * 4})
            (folder / "f").mkdir(exist_ok=True)
            pq.write_table(history_file, folder / "f" / f"{part}.parquet")

    def source(self, **options: str) -> ChannelSource:
        given = {"uid": "three", "stages": "a,b,c"}
        given |= {"a.format": "delta_snapshot", "a.path": f"{self.folder}/t", "a.select": "n as id, x as amount"}
        given |= {"b.format": "files", "b.path": f"{self.folder}/f", "b.select": "amount, id"}
        given |= {"c.format": "datagen", "c.rows_of": "4,9,2", "c.select": "id, value as amount"}
        return Hybrid({**given, **options})

    def expected(self) -> list[dict[str, Any]]:
        first = [{"id": n, "amount": float(n)} for n in range(21)]
        second = [{"id": 100 + part * 4 + n, "amount": float(part * 7 + n)} for part in range(3) for n in range(4)]
        third = [{"id": row["id"], "amount": row["value"]} for row in log((4, 9, 2))]
        return first + second + third


@pytest.mark.core
class TestHybrid(SourceContract):
    @pytest.fixture(scope="class")
    def world(self, tmp_path_factory: pytest.TempPathFactory) -> SourceWorld:
        return LogWorld(tmp_path_factory.mktemp("hybrid") / "in")


@pytest.mark.slow(0.2, "19 tests, each of which reads a Delta table, a log and files")
class TestHybridOfThree(SourceContract):
    @pytest.fixture(scope="class")
    def world(self, tmp_path_factory: pytest.TempPathFactory) -> SourceWorld:
        return ThreeStages(tmp_path_factory.mktemp("three"))


class TestHybridInSpark(SourceQueryContract):
    @pytest.fixture
    def world(self, tmp_path: Path) -> SourceWorld:
        return LogWorld(tmp_path / "in")


def started(world: SourceWorld, **more: Any) -> SourceRun:
    return SourceRun(lambda given: world.source(**given), {}, **more)


def drain(run: SourceRun) -> None:
    while run.epoch():
        pass


def rows(run: SourceRun) -> list[int]:
    return sorted(row["id"] for row in run.trace.all_rows().to_pylist())


def test_a_file_that_appears_too_late_moves_no_cutover(tmp_path: Path) -> None:
    run = started(LogWorld(tmp_path / "in"), limits=[{"max_rows_per_epoch": "8"}])
    while len(run.trace.finished) < 5:
        assert run.epoch()
    late = [row for row in log() if row["channel"] == 0]
    pq.write_table(pa.Table.from_pylist(late, SCHEMA), tmp_path / "in" / "late.parquet")
    drain(run)
    assert rows(run) == sorted(row["id"] for row in log())


def test_the_cutover_is_as_logged_whatever_became_of_the_history(tmp_path: Path) -> None:
    run = started(LogWorld(tmp_path / "in"), schema=SPARK, limits=[{"max_rows_per_epoch": "8"}], lag=0)
    while len(run.trace.finished) < 5:
        assert run.epoch()
    for file in (tmp_path / "in").iterdir():
        file.unlink()
    while True:
        run.restart({"max_rows_per_epoch": "8"})
        if not run.epoch():
            break
    cutover = {"offsets": {"0": 16, "1": 11, "3": 2}, "time": None, "rows": None, "uncounted": False}
    assert run.offset.stage == {"number": 1, "name": "live", "begin": cutover}
    assert rows(run) == sorted(row["id"] for row in log())


def test_an_empty_history_moves_nothing(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    given = {**LogWorld(tmp_path / "in").given, "history.path": str(tmp_path / "empty"), "history.format": "files"}
    trace = drive(Hybrid, given, schema=SPARK, rng=random.Random(1))
    assert sorted(row["id"] for row in trace.all_rows().to_pylist()) == sorted(row["id"] for row in log())


def test_cutovers_by_several_columns_by_one_and_by_time(tmp_path: Path) -> None:
    rows = [
        {"topic": "a", "p": 0, "o": 4, "t": 1_000},
        {"topic": "a", "p": 1, "o": None, "t": 3_000},
        {"topic": "b", "p": 0, "o": 9, "t": None},
        {"topic": "a", "p": 0, "o": 7, "t": 2_000},
    ]
    schema = pa.schema([("topic", pa.string()), ("p", pa.int32()), ("o", pa.int64()), ("t", pa.timestamp("ms", "UTC"))])
    for number, row in enumerate(rows):
        pq.write_table(pa.Table.from_pylist([row], schema), tmp_path / f"{number}.parquet")

    def cutover(*names: str) -> Cutover:
        seen = Cutover()
        for number in (3, 1, 0, 2):
            seen = extended(seen, pq.read_table(tmp_path / f"{number}.parquet").to_batches(), names)
        return seen

    assert cutover("topic", "p", "o") == Cutover({"a:0": 7, "b:0": 9})
    assert cutover("p", "o") == Cutover({"0": 9})
    assert cutover("o") == Cutover({"": 9})
    assert cutover("t") == Cutover(time=3_000_000, rows=1)


@hypothesis.given(st.lists(st.lists(st.none() | st.integers(-3_000, 3_000), max_size=6), max_size=4))
def test_a_cutover_by_time_counts_the_rows_of_its_millisecond(batches: list[list[int | None]]) -> None:
    seen = Cutover()
    for times in batches:
        seen = extended(seen, [pa.record_batch({"t": pa.array(times, pa.timestamp("us"))})], ["t"])
    flat = [time for times in batches for time in times if time is not None]
    newest = max(flat, default=None)
    last = [time for time in flat if newest is not None and time // 1000 == newest // 1000]
    assert seen == Cutover(time=newest, rows=len(last) or None)


@pytest.mark.parametrize("available_now", [False, True])
def test_the_live_side_may_have_no_end(tmp_path: Path, available_now: bool) -> None:
    clock = tmp_path / "clock"

    class Clocked(DataGen):
        @classmethod
        def name(cls) -> str:
            return "clocked"

        clock = staticmethod(lambda: float(clock.read_text()))

    clock.write_text("1000")
    formats.add(Clocked)
    world = LogWorld(tmp_path / "in", **{"live.format": "clocked", "live.channels": "4", "live.rows_per_second": "100"})
    del world.given["live.rows_of"]
    run = started(world, limits=[world.small], available_now=available_now)
    for second in (1001, 1002, 1003):
        clock.write_text(str(second))
        drain(run)
        run.restart(world.small)
    drain(run)
    found = run.trace.all_rows().to_pylist()
    assert run.offset.stage is not None and not run.offset.ended
    live = {(row["channel"], row["seq"]) for row in found}
    assert len(live) == len(found)
    for channel in range(4):
        there = sorted(seq for at, seq in live if at == channel)
        assert there == list(range(len(there))) and len(there) > HISTORY[channel]
    with pytest.raises(ConfigurationError, match="stage 'history' has no end"):
        world.source(**{"history.watch": "true"})


def test_each_stage_hears_what_is_safe_of_its_own(tmp_path: Path) -> None:
    heard: list[tuple[str, Committed]] = []

    class Named(DataGen):
        @classmethod
        def name(cls) -> str:
            return "named"

        def on_epoch_committed(self, epoch: Committed) -> None:
            heard.append((self.options.uid, epoch))

    formats.add(Named)
    source = Hybrid(
        {"uid": "h", "stages": "a,b", "a.format": "named", "a.rows": "2", "b.format": "named", "b.rows": "2"}
    )
    source.on_epoch_committed(Committed({"a/0": 1}, (), False))
    source.on_epoch_committed(Committed({"a/0": 2, "b/0": 1}, ("a/0",), False))
    source.on_epoch_committed(Committed({"b/0": 2}, ("b/0",), False))
    assert heard == [
        ("h.a", Committed({"0": 1}, (), False)),
        ("h.a", Committed({"0": 2}, ("0",), True)),
        ("h.b", Committed({"0": 1}, (), False)),
        ("h.b", Committed({"0": 2}, ("0",), False)),
    ]
    heard.clear()
    source.on_epoch_committed(Committed({"b/0": 2}, ("b/0",), True))
    assert heard == [("h.a", Committed({}, (), True)), ("h.b", Committed({"0": 2}, ("0",), True))]


def with_options(folder: Path, options: dict[str, str]) -> ChannelSource:
    world = LogWorld(folder / "in")
    if TOPICS.items() <= options.items():
        del world.given["live.rows_of"]
    return world.source(**options)


TOPICS = {"live.format": "kafka_range", "live.bootstrap_servers": "127.0.0.1:1"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"histroy.path": "x"}, "unknown stage 'histroy'; did you mean 'history'"),
        ({"stages": "history,live,more"}, "stage 'more' has no format"),
        ({"stages": "history,history"}, "two stages have the same name"),
        ({"stages": "History,live"}, "cannot name a stage"),
        ({"live.format": "nowhere"}, "unknown source 'nowhere' for a stage"),
        ({"live.format": "no_module:Nothing"}, "cannot be imported"),
        ({"live.format": "hybrid"}, "unknown source 'hybrid' for a stage"),
        ({"live.rows_off": "1"}, "unknown option 'rows_off'; did you mean 'rows_of'"),
        ({"live.seam": "channel:seq"}, "the last stage has a 'seam'"),
        ({"history.select": "a as"}, "does not choose a column"),
        ({"history.seam": "seq"}, "after a row number of each channel, and cannot begin after anything else"),
        ({"history.seam": "tag:channel:seq"}, "cannot begin after anything else"),
        ({**TOPICS, "live.topics": "a,b", "history.seam": "channel:seq"}, "a partition without its topic says nothing"),
        ({**TOPICS, "live.pattern": "a.*", "history.seam": "channel:seq"}, "a partition without its topic"),
        ({**TOPICS, "live.topics": "a", "history.seam": "a:b:channel:seq"}, "3 columns cannot name a topic and its"),
    ],
)
def test_bad_options_are_refused_by_name(tmp_path: Path, options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        with_options(tmp_path, options)


def test_what_a_job_adds_is_no_option_of_a_stage(tmp_path: Path) -> None:
    """Over Spark Connect each source of a job gets the environment of workers so."""
    with_options(tmp_path, {registry.OPTION: "{}"})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"live.select": "id"}, "column 'channel' is of type int in stage 'history' and missing in stage 'live'"),
        ({"history.select": "id"}, "column 'channel' is in stage 'live' but not in stage 'history'"),
        (
            {"history.select": "id", "live.select": "tag as id"},
            "'id' is of type bigint in stage 'history' and of type string in stage 'live'",
        ),
        ({"history.select": "nothing"}, "column 'nothing' does not exist"),
        ({"history.seam": "channel:nothing"}, "option 'seam': column 'nothing' does not exist"),
        ({"history.seam": "channel:tag"}, "column 'tag' cannot be an offset: it is string"),
        ({"history.seam": "value:seq"}, "column 'value' cannot name a partition: it is double"),
        ({**TOPICS, "live.topics": "a", "history.seam": "seq"}, "an offset without its partition says nothing"),
    ],
)
def test_columns_that_do_not_agree_are_refused_at_load(tmp_path: Path, options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        with_options(tmp_path, options).schema()


def test_a_cutover_that_datagen_cannot_begin_at_is_refused() -> None:
    for cutover, what in (
        (Cutover({"": 9}), "ended at row 9 of channel ''"),
        (Cutover({"0": 5, "3": 4}), "ended at row 4 of channel '3', which does not exist"),
        (Cutover(time=5), "cannot begin after a time"),
    ):
        with pytest.raises(ConfigurationError, match=what):
            DataGen({"uid": "in", "rows_of": "10,10"}).follow(cutover)


def test_stages_that_cannot_follow_or_are_reordered_are_refused(tmp_path: Path) -> None:
    world = LogWorld(tmp_path / "in")
    for message in (
        "in stage 'history', its stage 1, which is not what 'stages' says",
        "has read channels of stage 'hist",
    ):
        run = started(world, limits=[{"max_rows_per_epoch": "100"}])
        assert run.epoch()
        seam = world.given.pop("history.seam", "")
        world.given["stages"] = "live,history"
        with pytest.raises(ConfigurationError, match=message):
            run.restart()
            run.epoch()
        world.given["stages"] = "history,live"
    assert seam == "", "the second time without a cutover"
    both = {**world.given, "stages": "history,live", "live.format": "files", "live.path": world.given["history.path"]}
    del both["live.rows_of"]
    with pytest.raises(ConfigurationError, match="the source files cannot begin where another one ended"):
        drive(Hybrid, {**both, "history.seam": "channel:seq"}, rng=random.Random(1))


def test_ids_of_what_follows_are_as_when_each_first_appeared(tmp_path: Path) -> None:
    asked = tmp_path / "asked"

    class Identified(DataGen):
        @classmethod
        def name(cls) -> str:
            return "identified"

        def ids(self) -> dict[str, str]:
            with asked.open("a") as out:
                out.write(".")
            now = asked.stat().st_size
            return {"first": str(now), **({"later": str(now)} if now > 1 else {})}

        def expect(self, ids: Mapping[str, str]) -> None:
            assert ids == {"first": "1", "later": "2"}
            asked.with_name("expected").touch()

    formats.add(Identified)
    world = LogWorld(tmp_path / "in", **{"live.format": "identified"})
    drain(started(world, limits=[{"max_rows_per_epoch": "1"}]))
    assert asked.with_name("expected").exists()
    assert asked.stat().st_size == 3, "not in each epoch, but whenever there is a channel more"


@pytest.mark.parametrize(
    ("first", "then", "what"),
    [
        ("channel:seq", "tag:seq", "began with the seam 'channel:seq', and now has 'tag:seq'"),
        ("channel:seq", "", "began with the seam 'channel:seq', and now has none"),
        ("", "channel:seq", "began without a seam, and now has 'channel:seq'"),
    ],
)
def test_another_seam_than_the_stage_began_with_is_refused(tmp_path: Path, first: str, then: str, what: str) -> None:
    world = LogWorld(tmp_path / "in")
    world.given["history.seam"] = first
    run = started(world, limits=[world.small])
    assert run.epoch()
    world.given["history.seam"] = then
    run.restart(world.small)
    with pytest.raises(ConfigurationError, match=what):
        run.epoch()


def test_secrets_of_a_stage_are_not_shown() -> None:
    options = Hybrid.options_type.parse(
        "hybrid",
        {"uid": "a", "stages": "x", "x.format": "kafka", "x.password": "p-1", "x.dsn": "d-1", "x.path": "here"},
    )
    assert options.public()["x.password"] == options.public()["x.dsn"] == "***"
    assert options.public()["x.path"] == "here"


def test_bad_rows_of_a_stage_are_those_of_the_source(tmp_path: Path) -> None:
    for name, text in (("a", "1\nx\n"), ("b", "y\n2\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "0.csv").write_text(text)
    given = {"uid": "h", "stages": "a,b", "on_bad_row": "quarantine"}
    given |= {f"{name}.format": "files" for name in "ab"} | {f"{name}.path": str(tmp_path / name) for name in "ab"}
    trace = drive(Hybrid, given, schema=columns("n int"), rng=random.Random(1))
    assert trace.all_rows()["n"].to_pylist() == [1, 2]
    found = {name: [(row.position["byte"], row.raw) for row in rows] for name, rows in trace.bad_rows.items()}
    assert found == {"a/0.csv": [(2, b"x")], "b/0.csv": [(0, b"y")]}
    with pytest.raises(ConfigurationError, match="an option of the whole source"):
        Hybrid({**given, "b.on_bad_row": "quarantine"})


def test_a_bad_row_says_nothing_of_the_cutover(tmp_path: Path) -> None:
    rows = log()
    lines = [f"{row['channel']},{row['seq']}" for row in rows if row["seq"] < HISTORY[row["channel"]]]
    (tmp_path / "h").mkdir()
    (tmp_path / "h" / "0.csv").write_text("\n".join([*lines, "0,x", "y,3"]))
    given = {"uid": "h", "stages": "old,new", "on_bad_row": "quarantine", "old.format": "files"}
    given |= {"old.path": str(tmp_path / "h"), "old.seam": "channel:seq"}
    given |= {"new.format": "datagen", "new.rows_of": ",".join(map(str, ROWS)), "new.select": "channel, seq"}
    trace = drive(Hybrid, given, schema=columns("channel int, seq bigint"), rng=random.Random(5))
    found = sorted((row["channel"], row["seq"]) for row in trace.all_rows().to_pylist())
    assert found == [(row["channel"], row["seq"]) for row in rows]
    assert [row.raw for row in trace.bad_rows["old/0.csv"]] == [b"0,x", b"y,3"]


@pytest.mark.parametrize("seed", range(3))
def test_each_row_of_postgres_is_there_once_across_the_cutover(database: Database, seed: int) -> None:
    rows = [row for row in log() if row["seq"] < HISTORY[row["channel"]]]
    random.Random(seed).shuffle(rows)
    database.run("CREATE TABLE history (id bigint PRIMARY KEY, channel int, seq bigint, tag text)")
    with database.connect() as connection, connection.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO history VALUES (%s, %s, %s, %s)",
            [(row["id"], row["channel"], row["seq"], row["tag"]) for row in rows],
        )
    database.run("ANALYZE history")
    history = {"format": "postgres", "table": "history", "rows_per_channel": "8", "seam": "channel:seq"}
    live = {"format": "datagen", "rows_of": ",".join(map(str, ROWS)), "select": "id, channel, seq, tag"}
    given = {"uid": "hybrid", "stages": "history,live", **{f"live.{name}": value for name, value in live.items()}}
    given |= {f"history.{name}": value for name, value in {**history, **database.options}.items()}
    trace = drive(Hybrid, given, rng=random.Random(seed), crash=0.3)
    assert sorted(row["id"] for row in trace.all_rows().to_pylist()) == sorted(row["id"] for row in log())
    assert PASSWORD not in f"{Hybrid(given).options.public()}"
