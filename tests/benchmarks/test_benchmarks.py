"""The benchmarks' own arithmetic, clients and inputs, and the form of what they write; they run with `make bench`."""

import importlib
import json
import pkgutil
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

import benchmarks
from benchmarks.__main__ import read, show, write
from benchmarks._control import WITHOUT_LIMIT, Epoch, first_planned, made, period, rate
from benchmarks._control_clients import poll, posts
from benchmarks._figures import Aim, Figure, Sample, beside, in_pairs
from benchmarks._measure import NAMES, QUICK, measure
from benchmarks._operators import Steps
from benchmarks._profile import Profile
from benchmarks._results import MARK, PAGE, RESULTS, merged, replaced, table
from benchmarks.control_rates import files
from spark_ext.control.log import ControlLog
from spark_ext.control.requests import Accepted, Request
from spark_ext.ledger.schema import ControlEventRow
from spark_ext.server.limits import Limits
from spark_ext.server.server import ControlServer
from spark_ext.sources.contract import Channel, Limit
from spark_ext.sources.files.source import Files


def figure(ratio: float, aim: Aim) -> Figure:
    return Figure("some", "a / b", ratio, aim, {"a": Sample.of([1.0, 2.0, 3.0, 4.0, 100.0], "ms")})


@pytest.mark.parametrize(
    ("aim", "met", "missed"), [(Aim(">=", 4.5), 4.5, 4.49), (Aim("<=", 1.1), 1.1, 1.11), (Aim("<", 2), 1.99, 2.0)]
)
def test_an_aim_is_met_on_its_own_side(aim: Aim, met: float, missed: float) -> None:
    assert figure(met, aim).meets and not figure(missed, aim).meets


def test_percentiles_which_a_disturbed_run_hardly_moves() -> None:
    sample = Sample.of([4.0, 1.0, 3.0, 2.0, 5.0], "ms")
    assert [sample.percentile(percent) for percent in (0, 25, 50, 90, 100)] == pytest.approx([1, 2, 3, 4.6, 5])
    for values, quartiles in (([1.0, 2.0, 3.0, 4.0, 100.0], (2, 4)), ([7.0], (7, 7))):
        sample = Sample.of(values, "ms")
        assert (sample.median, sample.quartiles) == (sum(quartiles) / 2, quartiles)
    with pytest.raises(ValueError, match="needs a value"):
        Sample.of([], "s")


def divided(dividend: list[float], divisor: list[float], aim: Aim) -> Figure:
    samples = {"a": Sample.of(dividend, "ms"), "b": Sample.of(divisor, "ms")}
    return Figure("some", "a / b", samples["a"].median / samples["b"].median, aim, samples, divided=("a", "b"))


def test_quartiles_of_a_ratio_divide_its_sides_crosswise() -> None:
    one = divided([10, 20, 30, 40, 50], [1, 2, 4, 5, 8], Aim("<=", 1))
    assert (one.ratio, one.quartiles) == (7.5, (20 / 5, 40 / 2))
    assert figure(1.0, Aim(">=", 1)).quartiles is None, "it is not of two sides"


@pytest.mark.parametrize(
    ("aim", "ratio", "said"),
    [
        *((Aim(">=", 1), ratio, said) for ratio, said in ((3, "worse"), (4, ""), (20, ""), (21, "better"))),
        *((Aim("<=", 1), 3, "better"), (Aim("<", 1), 21, "worse")),
    ],
)
def test_a_ratio_outside_the_quartiles_of_the_baseline_is_marked(aim: Aim, ratio: float, said: str) -> None:
    baseline = [divided([10, 20, 30, 40, 50], [1, 2, 4, 5, 8], aim).to_json("some_benchmark")]
    now = divided([ratio], [1], aim).to_json("some_benchmark")
    text = StringIO()
    show([now], Console(file=text, width=80), baseline=baseline)
    cells = [[cell.strip() for cell in line.split("│")] for line in text.getvalue().splitlines()]
    row, below = next(cells[n : n + 2] for n, row in enumerate(cells) if row[1:2] == ["some"])
    assert row[5:7] == ["7.5", said]
    assert below[5] == "(4..20)"
    environment = baseline[0]["detail"]["environment"]
    assert f"baseline: {environment['date']}" in text.getvalue()


def test_a_figure_that_the_baseline_lacks_is_shown_without_it() -> None:
    text = StringIO()
    baseline = [{**figure(1.0, Aim(">=", 1)).to_json("some_benchmark"), "name": "other"}]
    show([figure(2.0, Aim(">=", 1)).to_json("some_benchmark")], Console(file=text, width=200), baseline=baseline)
    assert "worse" not in text.getvalue() and "better" not in text.getvalue()


def test_figures_survive_the_file(tmp_path: Path) -> None:
    written = [figure(0.987654, Aim(">=", 0.99)).to_json("some_benchmark")]
    write(written, tmp_path / "out" / "bench.json")
    (found,) = read(tmp_path / "out" / "bench.json")
    assert set(found) == {"name", "ratio", "quartiles", "aim", "meets", "command", "detail"}
    assert (found["ratio"], found["aim"], found["meets"]) == (0.988, ">= 0.99", False)
    assert found["command"] == "python -m benchmarks some_benchmark"
    assert found["detail"]["sides"]["a"]["n"] == 5
    assert json.loads(json.dumps(found)) == written[0]
    just = figure(0.98996, Aim(">=", 0.99)).to_json("some_benchmark")
    assert not just["meets"], "the verdict is on what was measured, not on what is shown"


def test_the_page_shows_the_last_figures_beside_those_before() -> None:
    first = figure(0.9, Aim(">=", 0.99)).to_json("b")
    other = {**figure(3.0, Aim("<=", 4)).to_json("a"), "name": "other"}
    known = merged(merged([], [first, other]), [divided([4.0], [2.0], Aim(">=", 0.99)).to_json("b")])
    assert [(one["name"], one["ratio"], one["before"]) for one in known] == [("other", 3, None), ("some", 2, 0.9)]
    assert set(known[0]["detail"]["environment"]) == {"date", "commit", "machine", "cores", "load"}
    other_line, some_line = table(known).splitlines()[2:]
    assert other_line.startswith("| `other` | a / b | <= 4.0 | 3 |  | 2")
    assert some_line.startswith("| `some` | a / b | >= 0.99 | 2 (2 to 2) | 0.9 | 2")
    assert "| **0.9**, misses |" in table([first])
    page = "text\n<!-- bench table: begin -->\nold\n<!-- bench table: end -->\n"
    assert replaced(page, MARK, r"new \1") == page.replace("\nold\n", "\n\nnew \\1\n\n")
    assert replaced("without marks", MARK, "new") == "without marks"


def test_the_page_has_the_figures_that_are_committed() -> None:
    assert replaced(PAGE.read_text(), MARK, table(read(RESULTS))) == PAGE.read_text()


def test_the_names_are_those_of_all_modules_that_can_be_run() -> None:
    modules = {one.name for one in pkgutil.iter_modules(benchmarks.__path__)} - {"__main__"}
    runnable = {name for name in modules if callable(getattr(importlib.import_module(f"benchmarks.{name}"), "run", 0))}
    assert runnable == set(NAMES)


def test_each_size_of_a_quick_run_is_one_of_its_benchmark() -> None:
    for name, quick in QUICK.items():
        module = importlib.import_module(f"benchmarks.{name}")
        assert all(hasattr(module, size) for size in quick.sizes), name
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


def every(seconds: float, count: int, rows: int = 10) -> list[Epoch]:
    """Epochs that begin one after the other at 100 s, each committed half a period later."""
    return [Epoch(number, at := 100 + number * seconds, at + seconds / 2, rows) for number in range(count)]


def test_the_period_of_a_window_is_that_between_its_commits() -> None:
    assert period(every(2.0, 10), 103, 110) == pytest.approx(2000)
    with pytest.raises(ValueError, match="1 epochs were committed"):
        period(every(2.0, 10), 100, 102)


def test_a_rate_excludes_the_first_epoch_and_covers_the_time() -> None:
    # What the first one reads was allowed by the time before it.
    first, *others = every(0.5, 41, 5_000)
    assert rate([Epoch(first.number, first.began, first.committed, 10**6), *others], 0, float("inf")) == 10_000
    found = [*every(1.0, 5), Epoch(5, 109, 110, 70), Epoch(6, 110, 111, 10**6)]
    assert rate(found, 100, 106) == pytest.approx((4 * 10 + 70) / 9)
    with pytest.raises(ValueError, match="1 epochs began"):
        rate(every(1.0, 1), 0, 1000)


def test_sides_change_their_order_and_have_a_value_per_round() -> None:
    called: list[str] = []

    def measure(side: str) -> float:
        called.append(side)
        return float(len(called))

    assert beside("abc", 2, measure) == {"a": [1, 6], "b": [2, 4], "c": [3, 5]}
    assert "".join(called) == "abcbca"
    assert in_pairs([2.0, 30.0], [1.0, 10.0]) == [2, 3], "pairs are of one round"


def test_a_profile_has_the_cpu_time_of_each_side_by_process() -> None:
    def work(turns: int) -> None:
        subprocess.run([sys.executable, "-c", f"sum(range({turns} * 10**7))"], check=True)

    with Profile() as profile:
        beside((1, 5), 1, work)
    table = profile.table()
    name, *_ = table.columns[0].cells
    one, five = (next(iter(column.cells)) for column in table.columns[-2:])
    assert name == "Python: driver"
    assert 0 < float(str(one)) < float(str(five))


def test_the_first_epoch_that_was_planned_at_a_moment_or_later() -> None:
    planned = {7: 3.0, 6: 2.0, 5: 1.0}
    assert [first_planned(planned, moment) for moment in (0, 1.5, 2.0, 3.5)] == [5, 6, 6, None]


def test_files_have_the_rows_in_two_channels(tmp_path: Path) -> None:
    with files(tmp_path, 10) as options:
        source = Files({"uid": "in", **options})
        assert [Path(channel.id).name for channel in source.discover()] == ["part-0.parquet", "part-1.parquet"]


@pytest.mark.parametrize("in_flight", [1, 3])
def test_burst_clients_know_what_was_accepted_and_what_refused(tmp_path: Path, in_flight: int) -> None:
    ledger = made(tmp_path / "state")
    with ControlServer(ledger.uri, limits=Limits(rate=0.001, burst=30, refusal_seconds=0)) as server:
        found = posts(server.url, server.token or "", clients=4, each=12, in_flight=in_flight)
    rows = ledger.table(ControlEventRow).rows()
    assert found.statuses == {202: 30, 429: 18}
    assert len(found.times) == 30
    accepted = [sequence for client in found.accepted for _, sequence in client]
    assert sorted(accepted) == sorted(row.sequence for row in rows) == list(range(1, 31))
    if in_flight == 1:
        sequences = [[sequence for _, sequence in client] for client in found.accepted]
        assert all(client == sorted(client) for client in sequences)
    assert {row.kind for row in rows} == {"set_config", "broadcast"}


def test_clients_that_poll_are_answered_until_their_time_is_over(tmp_path: Path) -> None:
    ledger = made(tmp_path / "state")
    (answer,) = ControlLog(ledger).accept([Request("set_config", value={"key": "a", "value": 1})])
    assert isinstance(answer, Accepted)
    with ControlServer(ledger.uri, limits=WITHOUT_LIMIT) as server:
        found = poll(server.url, server.token or "", answer.event.event_id, 0.5, send=True)
    assert set(found.statuses) == {200, 202}
    assert found.times
