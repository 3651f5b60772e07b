"""Whose turn it is in a series of runs, whenever the driver was killed."""

from pathlib import Path

from tests.chaos.turns import done, give, given, next_turn, take


def test_a_driver_continues_with_the_first_unfinished_run(tmp_path: Path) -> None:
    assert (next_turn(tmp_path), given(tmp_path, 0)) == (0, None)
    give(tmp_path, 0, last=False)
    assert (next_turn(tmp_path), given(tmp_path, 0)) == (0, False)
    take(tmp_path, 0, {"state": "SUSPENDED"})
    assert next_turn(tmp_path) == 1
    assert done(tmp_path, 0).read_text() == '{"state": "SUSPENDED"}'


def test_a_driver_that_is_started_again_behind_the_last_run_ends(tmp_path: Path) -> None:
    for number in range(3):
        give(tmp_path, number, last=number == 2)
        assert next_turn(tmp_path) == number
        take(tmp_path, number, {})
    assert next_turn(tmp_path) is None
    assert next_turn(tmp_path, 2) is None
