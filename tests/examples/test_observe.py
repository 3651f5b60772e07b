"""The example of an Observer: a query of somebody else that fails, is started again, and gets stuck."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from spark_ext.script import load_function
from tests.support.scripts import scripts_undone

SCRIPT = Path(__file__).parents[2] / "examples" / "observe.py"


@pytest.fixture
def example() -> Iterator[ModuleType]:
    with scripts_undone():
        yield sys.modules[load_function(SCRIPT, "start").__module__]


@pytest.mark.slow(20, "runs a query that fails and gets stuck")
@pytest.mark.usefixtures("spark")
def test_the_failure_and_the_stall_name_the_function(
    example: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["observe.py", "--out", str(tmp_path / "out")])
    assert example.main() == 0
    found = [line.split()[:2] for line in capsys.readouterr().out.splitlines() if "in price" in line]
    assert found == [["failure", "USER_CODE"], ["stall", "USER_CODE"]]
