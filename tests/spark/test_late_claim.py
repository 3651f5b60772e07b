"""A claim that waits for the first epoch: what planners and driver say to each other, without Spark."""

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql.types import StructType

from spark_ext.errors import TransientError
from spark_ext.model.offsets import SourceOffset
from spark_ext.sources.runtime.planner import NoLedger, Planner
from spark_ext.sources.runtime.reader import ChannelReader
from spark_ext.sources.runtime.stream_reader import ReadAllAvailable
from spark_ext.spark.session import late_claim, registry
from spark_ext.spark.session.registry import Registration
from spark_ext.testing.children import Child
from tests.sources.memory import Store, memory, registration
from tests.support.waiting import until


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registration:
    """The registration of a source whose query has planned two epochs and not claimed its target."""
    monkeypatch.setenv(registry.VARIABLE, str(tmp_path / "registry"))
    found = replace(registration(), checkpoint=str(tmp_path / "checkpoint"), start=7, claims_after=1)
    registry.publish([found], place(tmp_path))
    plan(found, 0)
    plan(found, 1)
    return found


def place(folder: Path) -> Path:
    return folder / "registry"


def plan(mine: Registration, epoch: int) -> None:
    offsets = Path(mine.checkpoint) / "offsets"
    offsets.mkdir(parents=True, exist_ok=True)
    (offsets / str(epoch)).write_text("v1\n{}")


def answer(mine: Registration, folder: Path, *, meanwhile: Callable[[], None] = lambda: None) -> threading.Thread:
    """The driver: claims the target when it is asked to."""

    def claim() -> None:
        until(lambda: late_claim.is_asked(["other", mine.uid], mine.start, place(folder)), "a planner asks")
        meanwhile()
        registry.publish([replace(mine, claims_after=None)], place(folder))

    thread = threading.Thread(target=claim, daemon=True)
    thread.start()
    return thread


def test_nothing_is_planned_before_the_target_is_claimed(mine: Registration, tmp_path: Path) -> None:
    claimed: list[bool] = []
    driver = answer(mine, tmp_path, meanwhile=lambda: claimed.append(True))
    late_claim.before_planning(mine)
    assert claimed
    driver.join()
    plan(mine, 2)
    late_claim.before_planning(mine)  # its next epoch
    assert not late_claim.await_claim(None)
    assert not late_claim.await_claim(replace(mine, claims_after=None))


def test_an_epoch_planned_by_an_older_driver_is_completed_first(mine: Registration, tmp_path: Path) -> None:
    driver = answer(mine, tmp_path, meanwhile=lambda: plan(mine, 2))
    with pytest.raises(TransientError, match="an older driver of the job planned epoch 2"):
        late_claim.before_planning(mine)
    driver.join()


def killed_while_its_planner_waits(mine: Registration, folder: Path) -> None:
    if os.fork():
        until(lambda: late_claim.is_asked([mine.uid], mine.start, place(folder)), "a planner asks")
        os.kill(os.getpid(), signal.SIGKILL)
    signal.alarm(60)  # also if it waits on
    try:
        late_claim.await_claim(mine, place(folder))
    except TransientError as problem:
        (folder / "planner").write_text(str(problem))
    os._exit(0)


def test_a_planner_whose_driver_is_killed_waits_no_longer(mine: Registration, tmp_path: Path) -> None:
    with Child(killed_while_its_planner_waits, mine, tmp_path) as driver:
        until(lambda: driver.poll() is not None, "the driver's end")
        until((tmp_path / "planner").exists, "the planner's end")
    assert "the driver ended before it had claimed the target" in (tmp_path / "planner").read_text()


def test_what_a_planner_of_another_start_asks_for_does_not_count(mine: Registration, tmp_path: Path) -> None:
    registry.write_private(place(tmp_path) / registry.note(mine.uid, "claim"), 6)
    assert not late_claim.is_asked([mine.uid], mine.start, place(tmp_path))
    registry.withdraw([mine.uid], place(tmp_path))
    assert not (tmp_path / "registry").exists(), "nothing is left of it"


@pytest.mark.parametrize("repeated", [False, True], ids=["planned", "repeated"])
def test_a_source_waits_for_it_before_planning_or_repeating(mine: Registration, tmp_path: Path, repeated: bool) -> None:
    source = memory(Store({"a": 3}))
    reader = ChannelReader(source, StructType())
    reader._planner = Planner(source, mine, NoLedger())
    claimed: list[bool] = []
    driver = answer(mine, tmp_path, meanwhile=lambda: claimed.append(True))
    start = SourceOffset("s").to_json()
    if repeated:
        reader.partitions(start, start)
    else:
        assert reader.latestOffset(start, ReadAllAvailable()) != start
    assert claimed
    driver.join()
