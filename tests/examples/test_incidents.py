"""The example of incidents: a failure and an incident of the user's, each opened and resolved, at a real endpoint."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from spark_ext.script import load_function
from tests.support.scripts import scripts_undone

SCRIPT = Path(__file__).parents[2] / "examples" / "incidents.py"


@pytest.fixture
def example() -> Iterator[ModuleType]:
    with scripts_undone():
        yield sys.modules[load_function(SCRIPT, "job").__module__]


@pytest.mark.slow(20, "runs a job whose query fails, and is restarted until it recovers")
@pytest.mark.usefixtures("spark")
def test_each_step_is_sent(
    example: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["incidents.py", "--out", str(tmp_path / "out")])
    assert example.main() == 0
    lines = capsys.readouterr().out.splitlines()
    steps = [line.split()[:3] for line in lines if re.match(r"(ERROR|WARNING|CRITICAL) ", line)]
    mine = [step for step in steps if step[1] in ("failure", "late_prices")]
    assert mine[:2] == [["ERROR", "failure", "OPEN"], ["ERROR", "failure", "RESOLVED"]]
    assert mine[-2:] == [["WARNING", "late_prices", "OPEN"], ["WARNING", "late_prices", "RESOLVED"]]
    assert any("has committed epoch 0" in line for line in lines)
    (stacks,) = (tmp_path / "out" / "state" / "dumps").glob("*/stacks.txt")
    assert stacks.read_text().startswith("prices were late\n")
    assert any(re.search(r"late_prices +RESOLVED +2 x +prices are there", line) for line in lines)
