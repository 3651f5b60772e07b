"""The contract of exchanges, the same suite for each kind; and a job whose queries they link."""

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

import spark_ext as sx
from spark_ext.errors import StorageError
from spark_ext.exchange.consumers import CommittedFront, Consumer
from spark_ext.exchange.kinds import parts
from spark_ext.model.commits import Claim, CommitOutcome, Epoch, Task
from spark_ext.queries.context import checkpoint_of
from spark_ext.sinks.exchange_2pc import ExchangeSink
from spark_ext.testing.exchange_contract import ExchangeContract
from spark_ext.testing.exchange_driver import ROWS, Place, Reader, numbered


class TestArrow(ExchangeContract):
    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        return Place("arrow", str(tmp_path / "flights"))


@pytest.mark.slow(0.2, "each test commits many times to a Delta log; one of the 31 takes 3 s")
class TestDelta(ExchangeContract):
    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        return Place("delta", str(tmp_path / "flights"))


def to_table(frame: DataFrame, uid: str, path: Path) -> DataStreamWriter:
    return frame.writeStream.format("delta_2pc").option("uid", uid).option("path", str(path))


def job(spark: SparkSession, folder: Path, kind: str) -> sx.Job:
    """One query writes 2000 rows in 10 epochs; one reads them at once, one by 150 rows per epoch."""
    made = sx.Job(spark, "linked", state=folder / "state")
    flights = made.exchange("flights", partitions=3, key="key", kind=kind)
    source = spark.readStream.format("datagen").option("uid", "load").option("rows", 2000).option("channels", 2)
    made.add("load", flights.write(source.option("max_rows_per_epoch", 200).load().select("id", "key", "ts")))
    made.add("fast", to_table(flights.read("fast-in"), "fast-out", folder / "fast"))
    made.add("slow", to_table(flights.read("slow-in", max_rows_per_epoch=150), "slow-out", folder / "slow"))
    return made


@contextmanager
def watching(folder: Path, kind: str) -> Iterator[list[tuple[int, int]]]:
    """Looks, all the time, at what is released, and then at where the slower consumer stands."""
    seen: list[tuple[int, int]] = []
    done = threading.Event()
    consumers = [
        Consumer(f"{query}-in", checkpoint_of(str(folder / "state"), query), query) for query in ("fast", "slow")
    ]
    fronts = [CommittedFront(consumer, 3) for consumer in consumers]
    log = parts(kind, str(folder / "state" / "exchanges" / "flights"), "exchange").master.log

    def watch() -> None:
        while not done.wait(0.02):
            try:
                released = log.look().released
                stand = [front.look() for front in fronts]
            except (OSError, StorageError):
                continue  # it is being made
            seen.append((released, min((front.entry for front in stand if front is not None), default=10**9)))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        done.set()
        thread.join()


@pytest.mark.slow(15, "two runs of a job of three queries")
@pytest.mark.parametrize("kind", ["arrow", "delta"])
def test_x2_a_partition_is_released_when_all_have_passed_it(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    """In a job, at every moment; in the end all is released, and a second run reads nothing."""
    with watching(tmp_path, kind) as seen:
        assert job(spark, tmp_path, kind).run(progress=False).finished
    assert seen
    assert [one for one in seen if one[0] > one[1]] == []
    expected = list(range(2000))
    for out in ("fast", "slow"):
        assert sorted(DeltaTable(str(tmp_path / out)).to_pyarrow_table(columns=["id"])["id"].to_pylist()) == expected
    place = Place(kind, str(tmp_path / "state" / "exchanges" / "flights"))
    master = place.parts().master
    state = master.log.look()
    assert state.sealed is not None and state.released > state.sealed
    assert (master.held().rows, master.held().consumers, place.stored()) == (0, ("fast-in", "slow-in"), set())
    again = job(spark, tmp_path, kind).run(progress=False)
    assert (again.finished, again.rows) == (True, 0)


@pytest.mark.parametrize("kind", ["arrow", "delta"])
def test_a_deleted_one_is_made_anew_by_the_next_start(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "flights"
    for start in (5, 6):
        sink = ExchangeSink({"uid": "flights", "path": str(path), "kind": kind, "partitions": "3"})
        sink.validate(ROWS)
        sink.claim(Claim("flights", "job", "job-1", 1, 0, start=start, query_id="q"))
        segment = sink.write(ROWS, iter([numbered(0, 10)]), Task("flights", "q", 0, 0, 0, 1, 0, start))
        assert segment is not None
        epoch = Epoch("flights", 0, "q", 0, 1, start=start)
        sink.check(epoch)
        assert sink.commit(ROWS, epoch, [segment]) is CommitOutcome.COMMITTED
        assert Reader(Place(kind, str(path))).all().ids == list(range(10))
        shutil.rmtree(path)
