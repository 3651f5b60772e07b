"""Options of `delta_2pc` by which rows are replaced, and by which the table's files are kept few."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field, model_validator

from spark_ext.delta.upsert import Upsert
from spark_ext.options import Bytes, Milliseconds, Names, Options

_HOUR: Final = 3_600_000


class UpsertOptions(Options):
    """How rows meet those that are in the table."""

    mode: Literal["append", "upsert"] = "append"
    key: Names = ()  # For `upsert`: the key columns, comma-separated
    newest_by: Names = ()  # For `upsert`: the greatest row of a key counts; without it that of the later epoch
    # For `upsert`: where this column is true, the row deletes its key.
    deleted_if: str | None = Field(default=None, min_length=1)
    tombstones: Literal["drop", "keep"] | None = None  # Whether rows that delete stay in the table
    # For `upsert`: beyond it a merge uses the disk; None: no limit.
    merge_memory: Bytes | None = Field(default=None, gt=0)
    merge_disk: Bytes | None = Field(default=None, gt=0)  # For `upsert`: disk that a merge uses, bytes; None: 100 GB

    def upsert(self) -> Upsert | None:
        """The rule by which rows replace each other; None when they are appended."""
        if self.mode == "append":
            return None
        return Upsert(self.key, self.newest_by, self.deleted_if, self.tombstones == "keep")

    def identity(self) -> dict[str, str]:
        """With mode and key: rows that were written under others would not be found, or there would be two of a key.

        So is what marks the rows that are deleted, where they are kept. Other ways to compare rows may be chosen at any
        start.
        """
        found = super().identity()
        if self.mode == "upsert":
            found |= {"mode": self.mode, "key": ",".join(sorted(self.key))}
            if self.tombstones == "keep":
                found |= {"tombstones": "keep", "deleted_if": str(self.deleted_if)}
        return found

    @model_validator(mode="after")
    def _together(self) -> UpsertOptions:
        names = ("key", "newest_by", "deleted_if", "tombstones", "merge_memory", "merge_disk")
        given = [name for name in names if getattr(self, name) not in ((), None)]
        if self.mode == "append" and given:
            raise ValueError(f"'{given[0]}' requires mode=upsert")
        if self.mode == "upsert" and not self.key:
            raise ValueError("mode=upsert needs the option 'key'")
        for name in ("key", "newest_by"):
            columns = getattr(self, name)
            if len(set(columns)) < len(columns):
                raise ValueError(f"'{name}' names a column twice")
        shared = set(self.key) & {*self.newest_by, self.deleted_if} or {*self.newest_by} & {self.deleted_if}
        if shared:
            raise ValueError(f"column '{min(map(str, shared))}' cannot be two of key, newest_by and deleted_if")
        if self.tombstones and not self.deleted_if:
            raise ValueError("'tombstones' requires 'deleted_if'")
        if self.deleted_if and self.newest_by and self.tombstones is None:
            raise ValueError(
                "with 'newest_by' and 'deleted_if' the option 'tombstones' has to be set: 'keep' keeps deleted rows in "
                "the table, marked, so that an older row that comes later does not bring a key back; 'drop' deletes "
                "them, and such a row does"
            )
        return self


class OptimizeOptions(Options):
    """How files are compacted behind the epochs."""

    optimize_interval: Milliseconds | None = Field(default=None, gt=0)  # Between two compactions, ms; None: none
    optimize_target_size: Bytes | None = Field(default=None, gt=0)  # None: `delta.targetFileSize`, or 100 MB
    z_order_by: Names = ()  # Columns by which the compaction sorts rows along a Z-order curve, comma-separated
    vacuum_after: Milliseconds | None = Field(default=None, ge=_HOUR)  # ms, at least the table's retention; None: never

    @model_validator(mode="after")
    def _with_interval(self) -> OptimizeOptions:
        for name in ("optimize_target_size", "z_order_by", "vacuum_after"):
            if self.optimize_interval is None and getattr(self, name) not in ((), None):
                raise ValueError(f"'{name}' requires 'optimize_interval'")
        return self
