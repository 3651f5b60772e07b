"""The example of control events, on the first week of two months; `make control` runs it on the whole year."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from spark_ext.script import load_function
from tests.support.scripts import scripts_undone

SCRIPT = Path(__file__).parents[2] / "examples" / "control.py"
SIZES = {"ROWS_PER_EPOCH": 300, "SLOWLY": 400, "SECONDS": 2.0, "BEGIN": 600}


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The script, and the one that it imports, with a part of their data."""
    with scripts_undone():
        found = sys.modules[load_function(SCRIPT, "job").__module__]
        flights = sys.modules["flights"]
        for name in ("flights", "weather"):
            whole = getattr(flights, f"package_{name}")()
            part = whole[(whole["month"] <= 2) & (whole["day"] <= 7)]
            for module in (found, flights):
                monkeypatch.setattr(module, f"package_{name}", lambda part=part: part, raising=False)
        for name, value in SIZES.items():
            monkeypatch.setattr(found, name, value)
        yield found


@pytest.mark.slow(40, "runs a job of two queries, throttled for two seconds, and waits for each event")
@pytest.mark.usefixtures("spark")
def test_the_job_is_throttled_paused_reconfigured_and_drained(
    example: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And a further run finds it drained."""
    out = tmp_path / "out"
    monkeypatch.setattr(sys, "argv", ["control.py", "--out", str(out), "--data", str(tmp_path / "data")])
    assert example.main() == 0
    shown = capsys.readouterr().out
    assert "job 'control' FINISHED" in shown
    assert shown.count("equal to pandas, row by row") == 2 and "NOT equal" not in shown
    events = [line.split()[1:4] for line in shown.splitlines() if re.match(r" *\d+ +\w+ +(job|source:)", line)]
    limits = [["rate_limit", f"source:flights-{query}", "acknowledged"] for query in ("judge", "daily")]
    others = [[kind, "job", "acknowledged"] for kind in ("pause", "set_config", "resume", "drain")]
    assert events == [*limits, *others[:2], *limits, *others[2:]]
    assert "while it was paused: 0 rows" in shown
    assert re.search(r"epoch \d+: {}; epoch \d+: {'late_after': 60\.0}", shown)
    assert re.search(r"[1-9][\d,]* flights were late after 15 min, [1-9][\d,]* after 60 min", shown)
    assert example.main() == 0
    assert "finished: the job had been drained before" in capsys.readouterr().out
