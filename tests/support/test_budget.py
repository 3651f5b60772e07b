from __future__ import annotations

from tests.support.budget import folder, over


def test_a_folder_is_over_by_a_tenth_and_not_because_the_machine_is_slow() -> None:
    spent = {"tests/jobs": 111.0, "tests/new": 2.0, "tests/model": 0.5}
    assert over(spent, {"tests/jobs": 100}, 1.0) == {"tests/jobs", "tests/new"}
    assert over(spent, {"tests/jobs": 100}, 2.5) == set()
    assert over(spent, {"tests/jobs": 102, "tests/new": 2}, 1.0) == set()
    assert over(spent, {"tests/jobs": 102, "tests/new": 2}, 0.5) == set(), "waiting takes as long on a fast machine"


def test_costs_are_those_of_the_folder_below_tests() -> None:
    assert folder("tests/sinks/kafka_2pc/test_x.py") == "tests/sinks"
    assert folder("tests/test_cli.py") == "tests"
