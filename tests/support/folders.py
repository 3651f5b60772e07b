"""Folders as they were: what a restore from a backup does to a target."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path


def folder_snapshot(folder: Path) -> Callable[[], object]:
    """Copy a folder; returns a function that puts the copy in its place."""
    copy = Path(tempfile.mkdtemp(dir=folder.parent)) / "copy"
    shutil.copytree(folder, copy)

    def put_back() -> None:
        shutil.rmtree(folder)
        shutil.copytree(copy, folder)

    return put_back
