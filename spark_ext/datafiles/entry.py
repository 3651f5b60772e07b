"""A file that a listing found, and which files are hidden."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Entry:
    """A file that a listing found."""

    name: str
    """Relative to the listing's root."""
    size: int
    """Bytes."""
    modified: int
    """Nanoseconds since 1970 UTC; 0 if the storage does not report it."""

    @property
    def folder(self) -> str:
        """The file's folder, relative to the root; `.` for the root itself."""
        return self.name.rpartition("/")[0] or "."


def hidden(name: str) -> bool:
    """Whether Spark ignores a file: a part of its path begins with `.` or `_`, unless it is `_key=value`."""
    return any(part.startswith(".") or (part.startswith("_") and "=" not in part) for part in name.split("/"))
