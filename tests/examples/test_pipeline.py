"""The example of linked queries, on the first week of two months; `make pipeline` runs it on the whole year."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest

from spark_ext.script import load_function
from tests.support.scripts import scripts_undone

SCRIPT = Path(__file__).parents[2] / "examples" / "pipeline.py"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The script, and the one that it imports, with a part of their data."""
    with scripts_undone():
        found = sys.modules[load_function(SCRIPT, "job").__module__]
        for name in ("flights", "weather"):
            whole = getattr(found, f"package_{name}")()
            part = whole[(whole["month"] <= 2) & (whole["day"] <= 7)]
            for module in (found, sys.modules["flights"]):
                monkeypatch.setattr(module, f"package_{name}", lambda part=part: part)
        monkeypatch.setattr(found, "HALF", 1)
        monkeypatch.setattr(found, "load_flights", partial(found.load_flights, rows_per_epoch=3500))
        yield found


@pytest.mark.slow(60, "runs four linked queries to their end, three times")
@pytest.mark.usefixtures("spark")
def test_the_job_and_another_one_from_its_savepoint_end_alike(
    example: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And a further run reads nothing."""
    out = tmp_path / "out"
    monkeypatch.setattr(sys, "argv", ["pipeline.py", "--out", str(out), "--data", str(tmp_path / "data")])
    assert example.main() == 0
    shown = capsys.readouterr().out
    assert shown.count("job 'pipeline' FINISHED") == 2
    assert shown.count("equal, row by row") == 4 and "NOT equal" not in shown
    assert (out / "pipeline.png").read_bytes().startswith(b"\x89PNG")
    assert example.main() == 0
    assert capsys.readouterr().out.count("job 'pipeline' FINISHED: 0 rows in 0 epochs") == 2
