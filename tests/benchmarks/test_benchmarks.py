"""The benchmarks' own arithmetic and the form of what they write; the benchmarks themselves run with `make bench`."""

from __future__ import annotations

import importlib
import json
import pkgutil
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

import benchmarks
from benchmarks import _report
from benchmarks._figures import Aim, Figure, Sample
from benchmarks._measure import NAMES, QUICK, measure
from benchmarks._operators import Steps
from spark_ext.sources.contract import Channel, Limit


def figure(ratio: float, aim: Aim) -> Figure:
    return Figure("some", "a / b", ratio, aim, {"a": Sample.of([1.0, 2.0, 3.0, 4.0, 100.0], "ms")})


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


def divided(dividend: list[float], divisor: list[float], aim: Aim) -> Figure:
    samples = {"a": Sample.of(dividend, "ms"), "b": Sample.of(divisor, "ms")}
    ratio = samples["a"].median / samples["b"].median
    return Figure("some", "a / b", ratio, aim, samples, divided=("a", "b"))


def test_the_quartiles_of_a_ratio_are_those_of_its_sides_divided_the_other_way_round() -> None:
    one = divided([10, 20, 30, 40, 50], [1, 2, 4, 5, 8], Aim("<=", 1))
    assert one.ratio == 7.5
    assert one.quartiles == (20 / 5, 40 / 2)


def test_a_figure_that_is_not_of_two_sides_has_no_quartiles() -> None:
    assert figure(1.0, Aim(">=", 1)).quartiles is None


@pytest.mark.parametrize(
    ("aim", "ratio", "said"),
    [
        (Aim(">=", 1), 3, "worse"),
        (Aim(">=", 1), 4, ""),
        (Aim(">=", 1), 20, ""),
        (Aim(">=", 1), 21, "better"),
        (Aim("<=", 1), 3, "better"),
        (Aim("<", 1), 21, "worse"),
    ],
)
def test_a_ratio_outside_of_the_quartiles_of_the_baseline_is_marked(aim: Aim, ratio: float, said: str) -> None:
    baseline = [divided([10, 20, 30, 40, 50], [1, 2, 4, 5, 8], aim).to_json("some_benchmark")]
    now = divided([ratio], [1], aim).to_json("some_benchmark")
    text = StringIO()
    _report.show([now], Console(file=text, width=80), baseline=baseline)
    cells = [[cell.strip() for cell in line.split("│")] for line in text.getvalue().splitlines()]
    row, below = next(cells[n : n + 2] for n, row in enumerate(cells) if row[1:2] == ["some"])
    assert row[5:7] == ["7.5", said]
    assert below[5] == "(4..20)"
    environment = baseline[0]["detail"]["environment"]
    assert f"baseline: {environment['date']}" in text.getvalue()


def test_a_figure_that_the_baseline_lacks_is_shown_without_it() -> None:
    text = StringIO()
    baseline = [{**figure(1.0, Aim(">=", 1)).to_json("some_benchmark"), "name": "other"}]
    _report.show(
        [figure(2.0, Aim(">=", 1)).to_json("some_benchmark")], Console(file=text, width=200), baseline=baseline
    )
    assert "worse" not in text.getvalue() and "better" not in text.getvalue()


def test_figures_survive_the_file(tmp_path: Path) -> None:
    written = [figure(0.987654, Aim(">=", 0.99)).to_json("some_benchmark")]
    _report.write(written, tmp_path / "out" / "bench.json")
    (read,) = _report.read(tmp_path / "out" / "bench.json")
    assert set(read) == {"name", "ratio", "quartiles", "aim", "meets", "command", "detail"}
    assert (read["ratio"], read["aim"], read["meets"]) == (0.988, ">= 0.99", False)
    assert read["command"] == "python -m benchmarks some_benchmark"
    assert read["detail"]["sides"]["a"]["n"] == 5
    assert json.loads(json.dumps(read)) == written[0]


def test_a_ratio_that_just_misses_is_not_rounded_into_its_aim() -> None:
    """The verdict is on what was measured, not on what is shown."""
    assert not figure(0.98996, Aim(">=", 0.99)).to_json("some_benchmark")["meets"]


@pytest.mark.parametrize("name", NAMES)
def test_each_name_is_a_benchmark(name: str) -> None:
    assert callable(importlib.import_module(f"benchmarks.{name}").run)


def test_a_module_that_can_be_run_has_a_name_for_the_command_line() -> None:
    others = {one.name for one in pkgutil.iter_modules(benchmarks.__path__)} - set(NAMES) - {"__main__"}
    assert [one for one in others if hasattr(importlib.import_module(f"benchmarks.{one}"), "run")] == []


def test_each_size_of_a_quick_run_is_one_of_its_benchmark() -> None:
    for name, quick in QUICK.items():
        module = importlib.import_module(f"benchmarks.{name}")
        assert all(hasattr(module, size) for size in quick.sizes), name


def test_a_size_that_a_benchmark_does_not_have_is_refused() -> None:
    with pytest.raises(AttributeError, match="'delta_commit' has no size ROW"):
        measure("delta_commit", 1, {"ROW": 1})


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
