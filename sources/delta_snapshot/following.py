"""Where following a table begins, and which commits end it: another table, other columns, changed rows, no feed."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Final

from pyspark.sql.types import StructType

from spark_ext.datafiles.uri import shown
from spark_ext.errors import NEW_QUERY, StateError, UnsupportedTableError, refused
from spark_ext.model.offsets import Position
from spark_ext.options import instant
from spark_ext.schemas.arrow import arrow_type
from spark_ext.schemas.columns import fits
from spark_ext.sources.contract import Channel
from spark_ext.sources.delta_snapshot.commits import FEED, Commit, Metadata
from spark_ext.sources.delta_snapshot.follow import ChangedFiles, LogPosition, Reading
from spark_ext.sources.delta_snapshot.log import KEPT, REREAD, Follower, Log
from spark_ext.sources.delta_snapshot.time import commits_of
from spark_ext.sources.delta_snapshot.version import READABLE, TableVersion, physical_names, struct_of

if TYPE_CHECKING:
    from spark_ext.sources.delta_snapshot.options import DeltaSnapshotOptions

CHANNEL: Final = "versions"  # id of the channel of what comes after the snapshot
CHANGE: Final = "_change_type"  # with `changes`: `insert`, `delete`, `update_preimage` or `update_postimage`
VERSION: Final = "_commit_version"  # with `changes`: the version of the table that the change made
TIME: Final = "_commit_timestamp"  # with `changes`: when that was
COLUMNS: Final = StructType().add(CHANGE, "string").add(VERSION, "long").add(TIME, "timestamp")


def instant_of(at: int | None) -> str | None:
    """A time in ms since 1970 UTC as text."""
    if at is None:
        return None
    return datetime.fromtimestamp(at / 1000, timezone.utc).isoformat(timespec="milliseconds")


def require_feed(table: TableVersion, operator: str) -> None:
    """Refuse a version of a table in which changes are not recorded."""
    if not table.metadata.has_feed:
        raise refused(
            f"version {table.version} of '{shown(table.path)}' has no change data feed: its table property {FEED} is "
            "not true, so what was changed then is not recorded",
            operator,
            f"ALTER TABLE ... SET TBLPROPERTIES ({FEED} = true), and begin with that version or a later one; or "
            "remove changes=true",
        )


class Following:
    """Follows a table in the planner. Looks at the table once when it starts, and then at its commits only.

    `last` is the version that was the newest one when the run began, if it ends with that one; None: the current one.
    """

    def __init__(
        self,
        options: DeltaSnapshotOptions,
        log: Log,
        load: Callable[[int | None], TableVersion],
        pieces: ChangedFiles,
        operator: str,
        clock: Callable[[], float] = time.monotonic,
        last: int | None = None,
    ) -> None:
        self._options, self._log, self._load, self._operator = options, log, load, operator
        self._now = load(None)
        # The version that the table had when the planner started; or when the run began, if it ends with that one.
        self.newest = self._now.version if last is None else min(last, self._now.version)
        self.schema = self._now.schema
        self._channel: Channel | None = None
        self._declared: StructType | None = None
        follower = Follower(log, self._look, self._now.metadata.id, clock, options.poll_interval / 1000)
        self.reading = Reading(pieces, follower, self._check, self._names)

    def _look(self) -> tuple[str, int]:
        table = self._load(None)
        return table.metadata.id, table.version

    def _names(self, version: int) -> int | None:
        # The query has the columns of the version that the planner has started with; later ones are compared to them.
        return max(version, self._now.version) if self._now.mapped else None

    def latest(self) -> Position:
        """The position behind the newest version."""
        newest = self.newest
        return LogPosition(newest + 1, mark=self._log.mark(newest), names=self._names(newest)).to_json()

    def channel(
        self, known: Channel | None, after: int | None, declared: StructType, table: str, mark: str = ""
    ) -> Channel:
        """The channel, as it was begun or as it begins now, after a snapshot of a table by its commit's hash."""
        self._declared = declared
        if self._channel is None:
            former = table if known is None else known.data["table"]
            if former not in ("", self._now.metadata.id):
                raise self._log.replaced()
            if known is not None and known.data["mapping"] != self._now.metadata.mapping:
                raise self._other_mapping(self._now.metadata)
            self._channel = self._begin(after, mark) if known is None else known
        return self._channel

    def _begin(self, after: int | None, mark: str) -> Channel:
        version = self._start() if after is None else after + 1
        # The snapshot may have taken days: what follows it is of the commit that was chosen then.
        before = self._log.mark(version - 1) if after is None else self._log.same(after, mark)
        if version <= self.newest and self._log.at(version) is None:
            raise self._log.lost(version)
        if self._options.changes:
            require_feed(self._load(min(version, self.newest)), self._operator)
        table = self._now.metadata
        begin = LogPosition(version, mark=before).to_json()
        return Channel(CHANNEL, begin, {"table": table.id, "mapping": table.mapping})

    def _start(self) -> int:
        given, newest = self._options.starting_version, self.newest
        if self._options.starting_timestamp is not None:
            return self._start_at(self._options.starting_timestamp)
        if given is None or given == "latest":
            return newest + 1
        if given > newest + 1:
            raise refused(
                f"starting_version is {given}, and the newest version of the table is {newest}",
                self._operator,
                f"use a version up to {newest + 1}, or starting_version=latest",
            )
        return given

    def _start_at(self, text: str) -> int:
        try:
            wanted = instant(text)
        except ValueError as problem:
            raise refused(
                f"'{text}' is not a timestamp: {problem}", self._operator, "write it like 2024-01-31T00:00:00Z"
            ) from problem
        at = int(wanted.as_unit("ms").asm8.view("i8"))
        commits = commits_of(self._now.handle, self._log.filesystem, self._log.root, at)
        later = [commit for commit in commits if commit.at >= at]
        if not later:
            if at > time.time() * 1000:
                raise refused(
                    f"starting_timestamp is {text}, which is in the future",
                    self._operator,
                    "use an earlier time, or starting_version=latest",
                )
            return self.newest + 1
        if later[0] == commits[0] and commits[0].version > 0:
            raise refused(
                f"starting_timestamp is {text}, and the table's log reaches back to version {commits[0].version} of "
                f"{instant_of(commits[0].at)} only: what was added between is unknown",
                self._operator,
                "use a later time, or starting_version to begin with that version",
            )
        return later[0].version

    def _check(self, commit: Commit) -> None:
        """Refuse a commit whose rows cannot be read, or behind which the table is another one."""
        if commit.reader_version > 3 or (unknown := sorted(set(commit.reader_features) - READABLE)):
            needs = "a newer reader" if commit.reader_version > 3 else ", ".join(unknown)
            raise UnsupportedTableError(
                f"from version {commit.version} on, the table needs {needs}, which this source does not support",
                operator=self._operator,
                kept=KEPT,
                do="read it with Spark's own Delta source, or drop the feature from the table",
            )
        if commit.metadata is not None:
            self._check_metadata(commit.version, commit.metadata)
        if commit.changes_rows and not self._options.changes and not self._passed_over(commit):
            raise self._changes_rows(commit)

    def _passed_over(self, commit: Commit) -> bool:
        asked = self._options.on_change
        return asked == "skip" or (asked == "ignore_deletes" and not commit.adds and not commit.is_restore)

    def _changes_rows(self, commit: Commit) -> StateError:
        if commit.is_restore:
            return self._log.error(
                f"version {commit.version} of the table (RESTORE) takes back rows that were read: those that are "
                "written again would be read twice",
                f"{REREAD}; with changes=true such a query is told of what is taken back",
            )
        what, option = "deletes rows", "on_change=ignore_deletes"
        if commit.adds:
            what = "updates, replaces or deletes rows"
            option = "on_change=skip, which also leaves out the rows that they add"
        return self._log.error(
            f"version {commit.version} of the table ({commit.operation}) {what}, and this source follows rows that are "
            "added",
            f"follow the table's changes, with changes=true, {NEW_QUERY}; or have such commits passed over with "
            f"{option}",
        )

    def _check_metadata(self, version: int, found: Metadata) -> None:
        if self._options.changes and not found.has_feed:
            raise self._log.error(
                f"version {version} of the table turns its change data feed off: what is changed from there on is not "
                "recorded",
                f"set the table property {FEED} to true, and {REREAD}",
            )
        if self._channel is not None and found.mapping != self._channel.data["mapping"]:
            raise self._other_mapping(found)
        # What was declared is known to fit the version that the planner has started with.
        if version > self._now.version:
            self._check_columns(version, struct_of(found.fields))
            self._check_names(version, found)

    def _check_columns(self, version: int, held: StructType) -> None:
        declared = self._declared or StructType()
        own = COLUMNS.names if self._options.changes else []
        known = {*declared.names, *self._now.schema.names}
        for field in declared:
            if field.name in own:
                continue
            there = held[field.name] if field.name in held.names else None
            if there is None:
                raise self._other_columns(version, f"drops or renames the column '{field.name}'")
            if not fits(arrow_type(there.dataType), arrow_type(field.dataType), grown=True):
                change = f"from {field.dataType.simpleString()} to {there.dataType.simpleString()}"
                raise self._other_columns(version, f"changes the column '{field.name}' {change}")
        for field in held:
            if field.name not in known:
                raise self._other_columns(version, f"adds the column '{field.name}'")

    def _check_names(self, version: int, found: Metadata) -> None:
        known, declared = physical_names(self._now.metadata.fields), (self._declared or StructType()).names
        for path, name in physical_names(found.fields).items():
            if path[0] in declared and known.get(path, name) != name:
                raise self._other_columns(version, f"replaces the column '{path[0]}' by another one of its name")

    def _other_columns(self, version: int, what: str) -> StateError:
        return self._log.error(
            f"version {version} of the table {what}, and the running query has the columns that the table had when it "
            "was started",
            "start the job again: it continues with this version, and the query has the table's columns as they are "
            "then; or select columns with .schema(...)",
        )

    def _other_mapping(self, found: Metadata) -> StateError:
        what = f"the table's column mapping is now '{found.mapping}', and was another one when following it began"
        return self._log.error(what, REREAD)
