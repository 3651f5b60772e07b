"""The example of an epoch's parts, as it is."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from spark_ext.script import load_function
from tests.support.scripts import scripts_undone

SCRIPT = Path(__file__).parents[2] / "examples" / "epoch_parts.py"


@pytest.mark.slow(15, "runs a job of two queries whose epochs take a second")
@pytest.mark.usefixtures("spark")
def test_it_prints_the_parts_of_its_epochs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["epoch_parts.py", "--out", str(tmp_path / "out")])
    with scripts_undone():
        example = sys.modules[load_function(SCRIPT, "job").__module__]
        assert example.main() == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["query", "epoch", "ms", "planning", "reading", "user", "code", "state", "commit", "other"] in lines
    assert ["rows", "that", "are", "still", "to", "be", "read:", "0"] in lines
    # query, epoch, ms, and six shares, each with its sign.
    shares = {(line[0], line[1]): dict(zip("prusco", line[3::2], strict=True)) for line in lines if len(line) == 15}
    assert any(int(parts["u"]) > 0 for (query, _), parts in shares.items() if query == "slow")
    assert any(int(parts["s"]) > 0 for (query, _), parts in shares.items() if query == "counted")
