"""Small, full and read-only disks: separate file systems in memory. Mounting one requires root."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(place: Path, size: str) -> Iterator[Path]:
    """A file system of a size such as `1m` in a new directory; skips the test if it cannot be mounted."""
    place.mkdir()
    try:
        mount: list[str | Path] = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", place]
        if subprocess.run(mount, capture_output=True).returncode:
            pytest.skip("this user is not permitted to mount a file system")
        try:
            yield place
        finally:
            # A lazy unmount: after a failure on a full disk, the JVM or a server may still hold a file open.
            subprocess.run(["umount", "-l", place], check=True)
    finally:
        place.rmdir()


def fill(disk: Path) -> Path:
    filling = disk / "filling"
    with filling.open("wb", buffering=0) as out, pytest.raises(OSError, match="No space"):
        while True:
            out.write(b"x" * 4096)
    return filling


def remount(disk: Path, how: str) -> bool:
    """Make it read-only (`ro`) or writable (`rw`); returns False if it cannot, because a file is open."""
    return subprocess.run(["mount", "-o", f"remount,{how}", disk], capture_output=True).returncode == 0
