"""The tests of the source in own_source.py: random limits, planners that die at each step, replayed epochs.

They are those of the sources of spark-ext, and need no Spark: pip install pytest, then

    pytest test_own_source.py
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from own_source import Notes

from spark_ext.testing.source_contract import SourceContract, SourceWorld

LINES = {"monday": 7, "tuesday": 12, "friday": 1}


class NotesWorld(SourceWorld):
    """The outside world of the source: a folder, and what is to be read from it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name, lines in LINES.items():
            (folder / f"{name}.txt").write_text("".join(f"{name} {line}\n" for line in range(lines)))

    def source(self, **options: Any) -> Notes:
        return Notes({"uid": "notes", "folder": str(self.folder), **options})

    def expected(self) -> list[dict[str, Any]]:
        return [
            {"note": f"{name}.txt", "line": line, "text": f"{name} {line}"}
            for name, lines in LINES.items()
            for line in range(lines)
        ]


class TestNotes(SourceContract):
    @pytest.fixture
    def world(self, tmp_path: Path) -> NotesWorld:
        return NotesWorld(tmp_path)
