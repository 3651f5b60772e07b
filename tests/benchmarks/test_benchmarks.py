"""The benchmarks' own arithmetic and the form of what they write; the benchmarks themselves run with `make bench`."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

from benchmarks import _report
from benchmarks.__main__ import NAMES
from benchmarks._figures import Aim, Figure, Sample
from benchmarks._operators import Steps
from spark_ext.sources.contract import Channel, Limit


def figure(ratio: float, aim: Aim) -> Figure:
    """A figure with one side."""
    return Figure("some", "some_benchmark", "a / b", ratio, aim, {"a": Sample.of([1.0, 2.0, 3.0, 4.0, 100.0], "ms")})


@pytest.mark.parametrize(
    ("aim", "ratio", "met"),
    [
        (Aim(">=", 4.5), 4.5, True),
        (Aim(">=", 4.5), 4.49, False),
        (Aim("<=", 1.1), 1.1, True),
        (Aim("<=", 1.1), 1.11, False),
        (Aim("<", 2), 2.0, False),
        (Aim("<", 2), 1.99, True),
    ],
)
def test_an_aim_is_met_on_its_own_side(aim: Aim, ratio: float, met: bool) -> None:
    assert figure(ratio, aim).meets is met


def test_a_disturbed_measurement_moves_neither_median_nor_quartiles_far() -> None:
    sample = Sample.of([1.0, 2.0, 3.0, 4.0, 100.0], "ms")
    assert sample.median == 3
    assert sample.quartiles == (2, 4)


def test_a_sample_of_one_has_itself_as_quartiles() -> None:
    assert Sample.of([7.0], "s").quartiles == (7, 7)


def test_a_sample_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="needs a value"):
        Sample.of([], "s")


def test_figures_survive_the_file(tmp_path: Path) -> None:
    written = [figure(0.987654, Aim(">=", 0.99)).to_json()]
    _report.write(written, tmp_path / "out" / "bench.json")
    (read,) = _report.read(tmp_path / "out" / "bench.json")
    assert set(read) == {"name", "ratio", "aim", "meets", "command", "detail"}
    assert (read["ratio"], read["aim"], read["meets"]) == (0.988, ">= 0.99", False)
    assert read["command"] == "python -m benchmarks some_benchmark"
    assert read["detail"]["sides"]["a"]["n"] == 5
    assert json.loads(json.dumps(read)) == written[0]


def test_a_ratio_that_just_misses_is_not_rounded_into_its_aim() -> None:
    """The verdict is on what was measured, not on what is shown."""
    assert not figure(0.98996, Aim(">=", 0.99)).to_json()["meets"]


@pytest.mark.parametrize("name", NAMES)
def test_each_name_is_a_benchmark(name: str) -> None:
    assert callable(importlib.import_module(f"benchmarks.{name}").run)


def test_steps_have_the_rows_that_are_asked_for() -> None:
    source = Steps({"uid": "in", "steps": "4", "rows": "3", "empty_from": "1", "empty_upto": "3", "channels": "1"})
    (channel,) = source.discover()
    ids: list[int] = []
    at, finished, planned = 0, False, []
    while not finished:
        step = source.advance(channel, at, Limit())
        planned.append(step.rows)
        ids += [row["id"] for batch in source.read(channel, at, step.end) for row in batch.to_pylist()]
        at, finished = step.end, step.finished
    assert planned == [3, 0, 0, 3]
    assert ids == [0, 1, 2, 9, 10, 11]


def test_short_channels_end_without_rows() -> None:
    source = Steps({"uid": "in", "steps": "4", "channels": "1", "short": "2"})
    short = [channel for channel in source.discover() if channel.data == -1]
    assert len(short) == 2
    step = source.advance(Channel(short[0].id, None, -1), 0, Limit())
    assert (step.end, step.finished, step.rows) == (0, True, 0)
