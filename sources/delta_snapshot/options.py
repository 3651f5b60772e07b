"""The options of `delta_snapshot`, and which of them go together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from spark_ext.options import Milliseconds
from spark_ext.sources.contract import SourceOptions
from spark_ext.sources.spark_names import DELTA

_OF_FOLLOW = ("changes", "snapshot", "starting_version", "starting_timestamp", "on_change", "poll_interval")


class DeltaSnapshotOptions(SourceOptions):
    """Options of `delta_snapshot`."""

    foreign_names: ClassVar[Mapping[str, str]] = DELTA
    identity_fields: ClassVar[frozenset[str]] = frozenset(
        {"path", "timestamp", "follow", "changes", "snapshot", "starting_version", "starting_timestamp"}
    )

    path: str
    """The table: a local path, or a URI supported by delta-rs and pyarrow.fs; credentials come from the environment."""
    version: int | None = Field(default=None, ge=0)
    """Version of the table; default: the current one when the source is first planned."""
    timestamp: str | None = None
    """Read the version that was current at this time: ISO 8601, UTC if no zone is given."""
    split: bool | None = None
    """Whether several tasks may read one data file, or one range of versions; its rows are then not in order within an
    epoch. Default: data files of the snapshot are divided, later versions are not."""
    follow: bool = False
    """Whether to continue with the rows of later versions, without an end."""
    changes: bool = False
    """With `follow`: read the table's change data feed, with the kind of each change, instead of the rows alone."""
    snapshot: bool | None = None
    """With `follow`: whether to read a version of the table first. Default: unless a start is given."""
    starting_version: int | Literal["latest"] | None = None
    """With `follow`: the first version whose rows are read, without a snapshot; `latest`: the one that comes next."""
    starting_timestamp: str | None = None
    """With `follow`: begin with the first version at or after this time, without a snapshot."""
    on_change: Literal["refuse", "ignore_deletes", "skip"] = "refuse"
    """With `follow`, without `changes`: what is done about a commit that deletes or updates rows. It stops the query,
    or is passed over if it only deletes, or is passed over together with the rows that it adds."""
    poll_interval: Milliseconds = 1000
    """With `follow`: how often to look for a new version when there was none, ms."""

    @model_validator(mode="after")
    def _together(self) -> DeltaSnapshotOptions:
        if self.version is not None and self.timestamp is not None:
            raise ValueError("version and timestamp exclude each other")
        if not self.follow:
            for name in _OF_FOLLOW:
                if getattr(self, name) != type(self).model_fields[name].default:
                    raise ValueError(f"{name} needs follow=true")
            return self
        if self.starting_version is not None and self.starting_timestamp is not None:
            raise ValueError("starting_version and starting_timestamp exclude each other")
        if isinstance(self.starting_version, int) and self.starting_version < 0:
            raise ValueError("starting_version is 0 or more, or latest")
        start = "starting_version" if self.starting_version is not None else "starting_timestamp"
        if self.snapshot and getattr(self, start) is not None:
            raise ValueError(f"{start} begins without a snapshot: remove snapshot=true, or name the snapshot's version")
        for name in ("version", "timestamp"):
            if getattr(self, name) is not None and not self.begins_with_snapshot:
                raise ValueError(f"{name} is of the snapshot, which is not read: use starting_{name}, without snapshot")
        if self.changes and self.on_change != "refuse":
            raise ValueError("on_change and changes exclude each other: with changes, no commit is passed over")
        return self

    @property
    def begins_with_snapshot(self) -> bool:
        """Whether a version of the table is read, before what comes later if that is followed."""
        if self.snapshot is not None:
            return self.snapshot
        return self.starting_version is None and self.starting_timestamp is None

    def identity(self) -> dict[str, str]:
        """As in every source. What is off is left out, so that it is the same as before the option existed."""
        found = super().identity()
        return {name: value for name, value in found.items() if value != "False" or name not in ("follow", "changes")}
