"""The judge of random histories finds what is wrong; and a few histories are played."""

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.histories import definition
from tests.histories.definition import Change, Definition, Run, Step, changed, history, windows_closed
from tests.histories.play import ACTIONS, Garage, World

FINISHED = {"outcome": "FINISHED", "finished_before": {}}


def test_histories_are_as_random_as_their_seed() -> None:
    assert history(3) == history(3)
    steps = [step for seed in range(200) for step in history(seed)[1]]
    moves = {
        *definition.CHANGES, *definition.STATEFUL, *definition.ARRIVALS, *definition.HOURLY,
        *(what for plot in definition.PLOTS for what in plot),
    }  # fmt: skip
    assert {step.what for step in steps if isinstance(step, Change)} == moves
    assert {step.how for step in steps if isinstance(step, Run)} == set(definition.RUNS)
    assert all(history(seed)[1][-1] == Run("end") for seed in range(200))


def test_each_change_of_the_definition_is_one() -> None:
    files = {
        what
        for what in (*definition.CHANGES, *definition.STATEFUL)
        if changed(Definition(more=True), what, 7) == Definition(more=True)
    }
    assert files == {
        "add a query", "another file", "back up the state", "restore the state", "delete the checkpoint",
        "move the state", *ACTIONS,
    } - {"follow the target"}  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        (list(range(200)), None), ([*range(200), 7], "1 rows twice"), (list(range(199)), "1 rows missing, 0 others"),
        ([*range(200), 10_000], "0 rows missing, 1 others"),
    ],
)  # fmt: skip
def test_the_judge_counts_rows_by_content(tmp_path: Path, rows: list[int], problem: str | None) -> None:
    world = World(tmp_path, Definition(), Garage(tmp_path))
    write_deltalake(str(tmp_path / "output" / "out"), pa.table({"id": rows}))
    world.judge(FINISHED, world.definition)
    assert len(world.problems) == (problem is not None)
    assert problem is None or problem in world.problems[0]


def test_a_finished_target_stays_as_it_is(tmp_path: Path) -> None:
    world = World(tmp_path, Definition(), Garage(tmp_path))
    write_deltalake(str(tmp_path / "output" / "out"), pa.table({"id": list(range(200))}))
    world.judge(FINISHED, world.definition)
    write_deltalake(str(tmp_path / "output" / "out"), pa.table({"id": [777]}), mode="append")
    world.judge({"outcome": "FINISHED", "finished_before": {"copy": True}}, world.definition)
    assert world.problems == ["out: changed after it had finished"]


def test_the_judge_knows_what_an_aggregate_has_to_write() -> None:
    ids = set(range(16))
    assert Definition("total").expected(ids) == {6, 7, 14, 15}
    assert Definition("total", "min", keys=3, window=16).expected(ids) == {0, 1, 2}
    assert Definition("process").expected(ids) == ids


def test_the_judge_knows_which_windows_both_sources_have_passed() -> None:
    left, right = set(range(20)), set(range(10_000, 10_018))
    assert windows_closed(left, right, last=False) == {10_007, 10_015}
    assert windows_closed(left, set(range(10_000, 10_017)), last=False) == {10_007}
    assert windows_closed(left, right, last=True) == {10_007, 10_015, 10_017}


@pytest.mark.slow(30, "eleven starts of jobs in real drivers, one of them killed")
def test_two_histories(tmp_path: Path) -> None:
    """A random one, and one with a run of the hourly job of each kind, and with a checkpoint."""
    steps: list[Step] = [Change(what) for what in ("hourly run", "a left file", *definition.HOURLY[1:])]
    steps += [Run("checkpoint", 1), Change("read it from another table"), Change("another key"), Run("stop", 1)]
    played = [history(42), (Definition("total"), [*steps, Run("end")])]
    garage = Garage(tmp_path)
    try:
        for number, (job, moves) in enumerate(played):
            world = World(tmp_path / str(number), job, garage)
            for step in moves:
                world.play(step)
            assert not world.problems, world.log
    finally:
        garage.close()
