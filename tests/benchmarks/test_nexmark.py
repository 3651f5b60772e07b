"""Nexmark's events, its judge, and what is made of its results; the runs themselves are those of `make nexmark`."""

import re
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.nexmark import events, table
from benchmarks.nexmark.__main__ import Results, cases
from benchmarks.nexmark.flink import Flink, tables_of
from benchmarks.nexmark.judge import Difference, answer_of, difference, judge
from benchmarks.nexmark.queries import QUERIES
from benchmarks.nexmark.sides import Case, Progress, files_read
from spark_ext.spark.logs.spark_log import SparkLog

ALL = events.arriving(0, 20_000)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return events.write(tmp_path_factory.mktemp("events"), 20_000, 2)


def milliseconds(rows: pa.Table, column: str = "dateTime") -> np.ndarray:
    return rows[column].cast(pa.int64()).to_numpy() // 1000 - events.BEGIN.astype(np.int64) // 1000


@pytest.mark.parametrize("stream", list(events.STREAMS))
@pytest.mark.parametrize("hot", [False, True])
def test_any_part_of_the_events_has_the_rows_that_the_whole_has(stream: str, hot: bool) -> None:
    make = events.STREAMS[stream]
    parts = [make(events.arriving(at, at + 2_500), hot) for at in range(0, 20_000, 2_500)]
    assert pa.concat_tables(parts).equals(make(ALL, hot))


def test_each_event_is_in_one_stream_and_at_most_a_second_late() -> None:
    made = {stream: make(ALL, False) for stream, make in events.STREAMS.items()}
    assert {stream: rows.num_rows for stream, rows in made.items()} == {"person": 400, "auction": 1_200, "bid": 18_400}
    assert sorted(number for rows in made.values() for number in rows["event"].to_pylist()) == list(range(20_000))
    for rows in made.values():
        times = milliseconds(rows)
        assert (times == rows["event"].to_numpy() // 10).all()
        late = np.maximum.accumulate(times) - times
        assert 500 < late.max() < 1_000


def test_ids_are_dense_and_what_names_them_is_near_in_time() -> None:
    people, auctions, bids = (make(ALL, False) for make in events.STREAMS.values())
    assert sorted(people["id"].to_pylist()) == list(range(1_000, 1_400))
    assert sorted(auctions["id"].to_pylist()) == list(range(1_000, 2_200))
    open_ms = milliseconds(auctions, "expires") - milliseconds(auctions)
    assert open_ms.min() > 0 and 200 < open_ms.max() < 1_000
    newest = 1_000 + bids["event"].to_numpy() // 50 * 3 + 2
    ahead = bids["auction"].to_numpy() - newest
    assert ahead.min() >= -200 and 0 < ahead.max() <= 10
    assert set(auctions["category"].to_pylist()) == {10, 11, 12, 13, 14}
    hot = Counter(events.bids(ALL, True)["auction"].to_pylist())
    assert 0.85 < hot[1_000] / bids.num_rows < 0.95


def test_files_are_written_once_in_the_order_in_which_spark_reads_them(written: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in written.rglob("*.parquet")}
    assert events.write(written.parent, 20_000, 2) == written
    assert before == {path: path.stat().st_mtime_ns for path in written.rglob("*.parquet")}
    first, second = sorted((written / "bid").iterdir())
    assert first.stat().st_mtime < second.stat().st_mtime
    assert pq.read_table(second).equals(events.bids(events.arriving(10_000, 20_000)).cast(pq.read_schema(second)))
    with pytest.raises(ValueError, match="a multiple of 20,000"):
        events.write(written.parent, 30_000, 2)


@pytest.fixture(scope="module")
def db() -> duckdb.DuckDBPyConnection:
    return duckdb.connect()


def test_rows_are_compared_as_multisets(db: duckdb.DuckDBPyConnection) -> None:
    answer = pa.table({"a": [1, 1, 2, None], "b": [0.5, 0.5, float("nan"), 1.0]})
    assert difference(db, answer, answer.take([3, 2, 1, 0])) == Difference(4, 0, 0, 0)
    found = pa.table({"b": [0.5, 1.0, 1.0, 7.0], "a": [1, None, None, 2]})
    assert difference(db, answer, found) == Difference(4, lost=2, doubled=1, wrong=1)
    assert not difference(db, answer, found).none
    with pytest.raises(ValueError, match="the table has the columns"):
        difference(db, answer, answer.rename_columns(["a", "c"]))
    with pytest.raises(ValueError, match="the table has the columns"):
        difference(db, answer, answer.set_column(0, "a", answer["a"].cast(pa.string())))


@pytest.mark.parametrize("name", list(QUERIES))
def test_a_table_that_was_never_created_has_lost_each_row_of_the_answer(name: str, written: Path) -> None:
    found = judge(QUERIES[name], written, written / "none")
    assert 0 < found.rows == found.lost and found.doubled == found.wrong == 0


def test_files_that_flink_has_finished_are_judged(written: Path, tmp_path: Path, db: duckdb.DuckDBPyConnection) -> None:
    answer = answer_of(db, QUERIES["q2"], written)
    pq.write_table(answer.slice(0, 2), tmp_path / "part-0-0.parquet")
    pq.write_table(answer.slice(1), tmp_path / "part-1-0.parquet")
    (tmp_path / ".part-0-1.inprogress").write_text("PAR1")
    assert judge(QUERIES["q2"], written, tmp_path) == Difference(answer.num_rows, lost=0, doubled=1, wrong=0)


def test_flink_has_tables_of_the_streams_with_event_time_where_a_query_needs_it(written: Path, tmp_path: Path) -> None:
    bid, side = tables_of(QUERIES["q13"], written, tmp_path)
    assert bid.startswith("CREATE TABLE bid (`auction` BIGINT,") and "`dateTime` TIMESTAMP(3)" in bid
    assert "`value` STRING) WITH" in side and "WATERMARK" not in bid + side
    auction, bid, side = tables_of(QUERIES["q9"], written, tmp_path)
    assert all("WATERMARK" in one for one in (auction, bid)) and "WATERMARK" not in side


@pytest.mark.parametrize("name", list(QUERIES))
def test_words_of_flinks_sql_are_quoted(name: str) -> None:
    assert not re.search(r"(?<![`\w])(dateTime|day|minute|value)(?![`\w(])", QUERIES[name].of_flink)


def test_flinks_log_of_files_tells_how_far_it_is_and_what_it_did_when(tmp_path: Path) -> None:
    side = Flink(Case("flink", "q0", 2_000, 3), tmp_path, tmp_path)
    (tmp_path / "driver.log").touch()
    assert side.progress() == Progress(0, 0, 0)
    lines = ["1000 restored 0", "1100 file 1", "1200 file 2", "2000 snapshot 2", "2100 file 3", "2200 file 4"]
    (tmp_path / "bid.log").write_text("\n".join(lines) + "\n")
    moment = datetime.fromtimestamp(2.05).isoformat(" ", "milliseconds")
    (tmp_path / "driver.log").write_text(f"{moment} INFO  CheckpointCoordinator - Completed checkpoint 1 for job a\n")
    assert side.progress() == Progress(2, 2, 4)
    (tmp_path / "table").mkdir()
    (tmp_path / "table" / "part-0").touch()
    times = side.times()
    assert times[:3] == (1.0, None, [(2.05, 2)]) and len(times.outputs) == 1 and times.steps == [1.1, 2.1]


def test_a_finished_stream_of_flink_does_not_hold_the_others_back(tmp_path: Path) -> None:
    side = Flink(Case("flink", "q20", 2_000, 3), tmp_path, tmp_path)
    first = ["1000 restored 0", "1100 file 1", "1200 file 2"]
    again = ["5000 restored 2", "5100 file 3", "6000 snapshot 3"]
    moments = [
        f"{datetime.fromtimestamp(at).isoformat(' ', 'milliseconds')} INFO  CheckpointCoordinator -" for at in (2, 6)
    ]
    (tmp_path / "driver.log").write_text("".join(f"{moment} Completed checkpoint 1 for job a\n" for moment in moments))
    (tmp_path / "bid.log").write_text("\n".join([*first, "1900 snapshot 2", *again]) + "\n")
    ended = [*first, "1300 file 3", "1400 none 3", "1900 snapshot 3", "5000 restored 0", "6000 snapshot 0"]
    (tmp_path / "auction.log").write_text("\n".join(ended) + "\n")
    assert side.progress() == Progress(1, 3, 3) and side.times().epochs == [(2, 2), (6, 3)]


def test_the_answer_is_that_of_a_slow_program(written: Path, db: duckdb.DuckDBPyConnection) -> None:
    bids = pq.read_table(written / "bid").to_pylist()
    tops = Counter[tuple[int, int]]()
    for bid in bids:
        seconds = (bid["event"] // 10_000) // 2 * 2
        tops.update((start, bid["auction"]) for start in range(seconds - 8, seconds + 1, 2))
    most: dict[int, int] = {}
    for (start, _), num in tops.items():
        most[start] = max(num, most.get(start, 0))
    begin = events.BEGIN.astype("datetime64[s]").astype(int)
    found = answer_of(db, QUERIES["q5"], written).to_pylist()
    assert {(one["starttime"].timestamp() - begin, one["auction"], one["num"]) for one in found} == {
        (*key, num) for key, num in tops.items() if num == most[key[0]]
    }
    (top,) = answer_of(db, QUERIES["q7"], written).to_pylist()
    assert top["price"] == max(bid["price"] for bid in bids)
    counts = {one["bidder"]: one["bid_count"] for one in answer_of(db, QUERIES["q11"], written).to_pylist()}
    assert counts == Counter(bid["bidder"] for bid in bids), "all events are within two seconds"


def result(**given: Any) -> dict[str, Any]:
    return {
        "side": "job", "query": "q0", "events": 2_000, "kills": None, "hot": False, "files": 20, "ended": True,
        "seconds": 12.0, "core_seconds": 20.0, "memory": 10**9, "first": 2.0, "read": 10.0, "complete": 11.0,
        "epoch": 1.0, "epochs": [], "outputs": [], "killed": [], "rows": 5, "lost": 0, "doubled": 0, "wrong": 0,
        "environment": {"cores": 2, "load": [1.5]}, **given,
    }  # fmt: skip


def test_a_case_is_measured_once_and_sides_alternate(tmp_path: Path) -> None:
    some = list(cases(["table", "kills", "hot"], ["q0", "q5"], ["job", "plain"], 200_000))
    assert [one.side for one in some] == ["job", "plain"] * 7
    assert [(one.query, one.kills, one.hot) for one in some[::2]] == [
        ("q0", None, False), ("q5", None, False), ("q0", 0, False), ("q0", 9, False), ("q5", 0, False),
        ("q5", 9, False), ("q5", None, True),
    ]  # fmt: skip
    assert [one.side for one in cases(["table", "kills"], ["q2", "q5"], ["flink", "published"])] == [
        "flink", "flink", "published", *["flink"] * 4,
    ]  # fmt: skip
    results = Results(tmp_path / "out" / "results.jsonl")
    results.add(result(kills=9))
    again = Results(tmp_path / "out" / "results.jsonl")
    assert again.all() == [result(kills=9)]
    assert again.of(Case("job", "q0", 2_000, 9)) and not again.of(Case("job", "q0", 2_000))
    results.add(result(kills=0, seconds=1.23456))
    results.copy(tmp_path / "copy")
    assert Results(tmp_path / "copy").all() == [result(kills=9), result(kills=0, seconds=1.235)]


@pytest.mark.parametrize(
    ("sources", "files"),
    [
        (['{"logOffset":3}', '{"logOffset":2}'], 3),
        (['{"version":2,"kind":"channels","uid":"bid","sequence":4}', '{"kind":"end_of_input","marker":0}'], 4),
    ],
    ids=["plain", "job"],
)
def test_how_far_a_killed_query_has_read_is_in_its_offsets(tmp_path: Path, sources: list[str], files: int) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").write_text("\n".join(["v1", '{"batchWatermarkMs":0}', *sources]))
    log = SparkLog(str(tmp_path))
    assert (files_read(log, 0), files_read(log, None)) == (files, 0)


def test_what_a_kill_has_cost() -> None:
    kill = {"target": "worker", "at": 5.0, "replaced": 0.5, "read": 4, "planned": 5}
    one = result(epochs=[[4.0, 4], [8.0, 5], [10.0, 6], [11.2, 7]], outputs=[4.0, 10.1], killed=[kill])
    assert table.recovery(one, kill, 1.0) == {
        "target": "worker", "replaced": 0.5, "epoch": 3.0, "rows": pytest.approx(5.1), "rate": pytest.approx(6.2),
        "again": 100,
    }  # fmt: skip
    assert table.recovery({**one, "steps": [4.0, 7.0, 9.0, 9.9]}, kill, 1.0)["rate"] == pytest.approx(4.9)


def test_pages_show_what_was_measured_and_who_is_faster(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    marks = [
        f"<!-- nexmark {name}: begin -->\nold\n<!-- nexmark {name}: end -->" for name in ("summary", "table", "kills")
    ]
    page.write_text("before\n" + "\n".join(marks) + "\nafter\n")
    killed = result(side="plain", kills=9, ended=False, lost=3)
    flink = result(side="flink", complete=21.0, core_seconds=5.0)
    unjudged = result(side="published", rows=None, lost=None, doubled=None, wrong=None)
    others = [result(kills=9), result(side="flink", kills=9, seconds=10.0), result(side="plain", query="q5")]
    table.write_pages([result(), result(side="plain", complete=5.0, lost=2), flink, unjudged, killed, *others], [page])
    text = page.read_text()
    assert "\nold\n" not in text and text.startswith("before\n") and text.endswith("after\n")
    assert "| spark-ext | 222 | 20 | 1 of 1 | 0 |" in text and "| plain Spark | 667 | 20 | 0 of 1 | 2 |" in text
    assert "| Flink | 105 | 5 | 1 of 1 | 0 |" in text and "| 1.0 | - | - | - | - |" in text
    assert "Plain Spark is faster than spark-ext in all queries\nand takes fewer core seconds in no query." in text
    assert "Flink is faster than spark-ext in no query\nand takes fewer core seconds in all queries." in text
    assert "geometric mean of 0 |" in text and "| - | 0 of 1 | 3 |" in text
    assert "does not end" in text
