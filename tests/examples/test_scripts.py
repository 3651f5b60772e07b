"""The notebooks of the examples, run cell by cell on little data, and as scripts; `make pipeline` takes a year."""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from spark_ext.script import load_function
from tests.support.cells import is_notebook, run_cells
from tests.support.scripts import scripts_undone

EXAMPLES = Path(__file__).parents[2] / "examples"
SIZES = {"ROWS_PER_EPOCH": 300, "SLOWLY": 400, "SECONDS": 2.0, "BEGIN": 600}
NOTEBOOKS = ("control", "epoch_parts", "flights", "incidents", "observe", "pipeline")
pytestmark = pytest.mark.usefixtures("spark")


@pytest.fixture
def cells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., str]]:
    """Runs a notebook in its folder, with the names given; returns what it has printed. `weeks` is as in `load`."""
    for one in EXAMPLES.glob("*.py"):
        shutil.copy(one, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def run(name: str, *, weeks: bool = False, **given: Any) -> str:
        def change(names: dict[str, Any]) -> None:
            places = [names, *([vars(sys.modules["flights"])] if "flights" in sys.modules else [])]
            for table in ("package_flights", "package_weather") if weeks else ():
                if table in places[-1]:
                    whole = places[-1][table]()
                    part = whole[(whole["month"] <= 2) & (whole["day"] <= 7)]
                    for place in places:
                        monkeypatch.setitem(place, table, lambda part=part: part)
            names.update({one: new(names[one]) if callable(new) else new for one, new in given.items()})

        with monkeypatch.context() as patch:
            names = run_cells(tmp_path / f"{name}.py", patch, tmp_path, change)
        assert names["code"] == 0
        return capsys.readouterr().out

    with scripts_undone():
        yield run


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., ModuleType]]:
    """Loads a script; `weeks`: with the first week of two months of the flights and the weather."""

    def load(name: str, function: str = "job", *, weeks: bool = False) -> ModuleType:
        found = sys.modules[load_function(EXAMPLES / f"{name}.py", function).__module__]
        for table in ("package_flights", "package_weather") if weeks else ():
            whole = getattr(sys.modules["flights"], table)()
            part = whole[(whole["month"] <= 2) & (whole["day"] <= 7)]
            for module in (found, sys.modules["flights"]):
                monkeypatch.setattr(module, table, lambda part=part: part, raising=False)
        return found

    with scripts_undone():
        yield load


@pytest.fixture
def main(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[ModuleType], str]:
    """Runs a script with its own folders in an empty one; returns what it has printed."""
    monkeypatch.chdir(tmp_path)

    def run(example: ModuleType, *options: str) -> str:
        monkeypatch.setattr(sys, "argv", [example.__name__, "--out", example.OUT, *options])
        assert example.main() == 0
        return capsys.readouterr().out

    return run


@pytest.mark.slow(40, "runs a job of two queries, throttled for two seconds, and waits for each event")
def test_the_job_is_throttled_paused_reconfigured_and_drained(
    cells: Callable[..., str], load: Callable[..., ModuleType], main: Callable[..., str]
) -> None:
    """And a further run, as a script, finds it drained."""
    shown = cells("control", weeks=True, **SIZES)
    assert "job 'control' FINISHED" in shown
    assert shown.count("equal to pandas, row by row") == 2 and "NOT equal" not in shown
    events = [line.split()[1:4] for line in shown.splitlines() if re.match(r" *\d+ +\w+ +(job|source:)", line)]
    limits = [["rate_limit", f"source:flights-{query}", "acknowledged"] for query in ("judge", "daily")]
    others = [[kind, "job", "acknowledged"] for kind in ("pause", "set_config", "resume", "drain")]
    assert events == [*limits, *others[:2], *limits, *others[2:]]
    assert "while it was paused: 0 rows" in shown
    assert re.search(r"epoch \d+: {}; epoch \d+: {'late_after': 60\.0}", shown)
    assert re.search(r"[1-9][\d,]* flights were late after 15 min, [1-9][\d,]* after 60 min", shown)
    assert "finished: the job had been drained before" in main(load("control", weeks=True))


@pytest.mark.slow(60, "runs four linked queries to their end, three times")
def test_the_job_and_another_one_from_its_savepoint_end_alike(
    cells: Callable[..., str], load: Callable[..., ModuleType], main: Callable[..., str], tmp_path: Path
) -> None:
    shown = cells("pipeline", weeks=True, HALF=1, load_flights=lambda whole: partial(whole, rows_per_epoch=3500))
    assert shown.count("job 'pipeline' FINISHED") == 2
    assert shown.count("equal, row by row") == 4 and "NOT equal" not in shown
    assert (tmp_path / "out" / "pipeline" / "pipeline.png").read_bytes().startswith(b"\x89PNG")
    assert main(load("pipeline", weeks=True)).count("job 'pipeline' FINISHED: 0 rows in 0 epochs") == 2


@pytest.mark.slow(15, "runs a job of two queries whose epochs take a second")
def test_it_prints_the_parts_of_its_epochs(cells: Callable[..., str]) -> None:
    lines = [line.split() for line in cells("epoch_parts").splitlines()]
    assert ["query", "epoch", "ms", "planning", "reading", "user", "code", "state", "commit", "other"] in lines
    assert ["rows", "that", "are", "still", "to", "be", "read:", "0"] in lines
    # query, epoch, ms, and six shares, each with its sign.
    shares = {(line[0], line[1]): dict(zip("prusco", line[3::2], strict=True)) for line in lines if len(line) == 15}
    assert any(int(parts["u"]) > 0 for (query, _), parts in shares.items() if query == "slow")
    assert any(int(parts["s"]) > 0 for (query, _), parts in shares.items() if query == "counted")


@pytest.mark.slow(20, "runs a job whose query fails, and is restarted until it recovers")
def test_each_step_of_an_incident_is_sent(cells: Callable[..., str], tmp_path: Path) -> None:
    """A failure and an incident of the user's, each opened and resolved, at a real endpoint."""
    lines = cells("incidents").splitlines()
    steps = [line.split()[:3] for line in lines if re.match(r"(ERROR|WARNING|CRITICAL) ", line)]
    mine = [step for step in steps if step[1] in ("failure", "late_prices")]
    assert mine[:2] == [["ERROR", "failure", "OPEN"], ["ERROR", "failure", "RESOLVED"]]
    assert mine[-2:] == [["WARNING", "late_prices", "OPEN"], ["WARNING", "late_prices", "RESOLVED"]]
    assert any("has committed epoch 0" in line for line in lines)
    (stacks,) = (tmp_path / "out" / "incidents" / "state" / "dumps").glob("*/stacks.txt")
    assert stacks.read_text().startswith("prices were late\n")
    assert any(re.search(r"late_prices +RESOLVED +2 x +prices are there", line) for line in lines)


@pytest.mark.slow(20, "runs a query that fails and gets stuck")
def test_the_failure_and_the_stall_name_the_function(cells: Callable[..., str]) -> None:
    found = [line.split()[:2] for line in cells("observe").splitlines() if "in price" in line]
    assert found == [["failure", "USER_CODE"], ["stall", "USER_CODE"]]


@pytest.mark.slow(40, "runs a job of three queries")
def test_the_flights_of_two_weeks_are_those_of_pandas(cells: Callable[..., str]) -> None:
    assert "job 'flights' FINISHED" in cells("flights", weeks=True)


def test_each_notebook_of_the_repository_is_run_here() -> None:
    files = subprocess.run(
        ["git", "ls-files", "*.py"], cwd=EXAMPLES.parent, capture_output=True, text=True, check=True
    ).stdout.split()
    found = {one for one in files if is_notebook(EXAMPLES.parent / one)}
    assert found == {f"examples/{name}.py" for name in NOTEBOOKS}
