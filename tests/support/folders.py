"""Folders as they were: what a restore from a backup does to a target."""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path


def folder_snapshot(folder: Path) -> Callable[[], object]:
    """Copy a folder; returns a function that puts the copy in its place."""
    copy = Path(tempfile.mkdtemp(dir=folder.parent)) / "copy"
    shutil.copytree(folder, copy)

    def put_back() -> None:
        # Spark's maintenance may be writing snapshots of state there: they do no harm, whichever there are.
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(copy, folder, dirs_exist_ok=True)

    return put_back
