"""Folders as they were: what a restore from a backup does to a target; and that nothing is written to one."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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


@contextmanager
def unchanged(*folders: Path) -> Iterator[None]:
    """Nothing below the folders is written, made or removed meanwhile."""

    def found() -> dict[str, tuple[int, int, bytes]]:
        below = (path for folder in folders for path in folder.rglob("*"))
        paths = [path for path in below if path.is_file() or not any(path.iterdir())]
        return {
            str(path): (path.stat().st_mtime_ns, path.stat().st_size, path.read_bytes() if path.is_file() else b"")
            for path in paths
        }

    before = found()
    yield
    assert found() == before
