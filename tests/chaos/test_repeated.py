"""Runs that end with what is there, under `kill -9`. Short series of `python -m tests.chaos.repeated`."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.repeated import INLETS, Drivers, Series

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(3600)]
NAMES = [name for name in INLETS if name not in ("linked", "postgres-xmin")]
"""All but those that find their end as another one does; `python -m tests.chaos.repeated` runs them all."""


@pytest.fixture(scope="module")
def drivers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drivers]:
    with Drivers(tmp_path_factory.mktemp("drivers")) as drivers:
        yield drivers
        assert drivers.end() == []


@pytest.mark.slow(30, "kills a driver, starts another one, and a job four times")
@pytest.mark.parametrize("name", NAMES)
def test_each_run_reads_what_is_there_and_each_row_comes_once(name: str, drivers: Drivers, tmp_path: Path) -> None:
    outcome = Series(name, tmp_path, seed=3, drivers=drivers).run(runs=3, kills=1)
    assert outcome.problems == []
    assert (outcome.runs, outcome.kills) == (3, 1)
