"""Roll back of a sink's table to where it was after an epoch, in one fenced commit. Idempotent.

The commit is a RESTORE by delta-rs of the version that the position names, with its files, columns and properties. It
is refused as soon as any commit has come in between, and carries the fence and the lineage, so a newer claim makes it
fail. Epochs that are taken away still count as committed in their lineage; a restored job commits in a new one.

What there is to take away is found in the log, following earlier roll backs: a repeated roll back finds nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable, Transaction

from spark_ext.delta.entries import LogEntries, LogEntry, before_all, difference, position_after
from spark_ext.delta.failures import FAILURES
from spark_ext.delta.fenced_log import NO_HOOKS, FencedLog, properties
from spark_ext.delta.restored import CLAIM, SINK
from spark_ext.delta.transactions import lineage_name, rolled_back_name
from spark_ext.errors import StateError
from spark_ext.failpoints import FailPoint, reach
from spark_ext.model.commits import Claim, Epoch, not_the_target

if TYPE_CHECKING:
    from spark_ext.delta.sink_table import Target

_KEPT = "the table is unchanged"


@dataclass(frozen=True)
class RollBack:
    """The positions of one sink in its table, and the way back to them."""

    target: Target

    def position(self, epoch: Epoch) -> dict[str, Any] | None:
        """The version after an epoch of the sink, the table's id, and the last epoch in it; None without a table."""
        table = self.target.load()
        if table is None:
            return None
        last, version = table.transaction_version(epoch.application), table.version()
        if last is not None or table.transaction_version(f"fence:{self.target.uid}") is not None:
            version = position_after(self._entries(self.target.uid), version, epoch, last)
        held = None if last is None else self._epoch_at(table, version, epoch.application)
        return {"version": version, "table": str(table.metadata().id), **({} if held is None else {"epoch": held})}

    def check(self, claim: Claim, position: Any) -> None:
        """Refuse what `apply` would refuse; nothing is changed."""

        def attempt(log: FencedLog, table: DeltaTable | None) -> bool:
            self._version(table, claim, position)
            return True

        self.target.settle_claimed(claim, attempt, "checking the roll back")

    def apply(self, claim: Claim, position: Any) -> bool:
        """Take away what the sink has committed after the position; False, without a commit, if there is nothing."""
        fence = self.target.fence(claim.mark)

        def attempt(log: FencedLog, table: DeltaTable | None) -> bool:
            version = self._version(table, claim, position)
            if table is None or version is None:
                return False
            if fence and not fence.holds(log.held):
                raise not_the_target(f"it does not hold the claim of incarnation {claim.incarnation}", self.target.who)
            reach(FailPoint.DELTA_BEFORE_ROLLBACK)
            carried = (
                *(fence.transactions if fence else ()),
                Transaction(lineage_name(claim.sink), claim.lineage),
                Transaction(rolled_back_name(claim.sink), claim.lineage),
            )
            table.restore(
                version,
                commit_properties=properties(carried, passes=0, info=_info(claim, version)),
                post_commithook_properties=NO_HOOKS,
            )
            reach(FailPoint.DELTA_ROLLED_BACK)
            return True

        return self.target.settle_claimed(claim, attempt, f"rolling back by incarnation {claim.incarnation}")

    def _entries(self, uid: str) -> LogEntries:
        return LogEntries(self.target.location, uid, self.target.who)

    def _version(self, table: DeltaTable | None, claim: Claim, position: Any) -> int | None:
        """The version to go back to; None when the sink has committed nothing that would have to go.

        Several sinks of the job go back to one version, each by a commit of its own, by which it knows what has gone.
        """
        entries = self._entries(self.target.uid)
        if table is None:
            if position is None:
                return None
            raise self._refused(
                "the table does not exist", "put it back from a backup, and restore the savepoint again"
            )
        newest, places = table.version(), {self.target.uid: position, **claim.siblings}
        logs = {uid: entries if uid == self.target.uid else self._entries(uid) for uid in places}
        ends = {uid: self._end(table, logs[uid], place) for uid, place in places.items()}
        versions = [version for version in ends.values() if version is not None]
        if ends[self.target.uid] is None:
            return None
        wanted = min(versions)
        changes = difference(entries, newest, wanted)
        if not changes.is_own and not (claim.siblings and _gone(entries, newest, wanted)):
            return None
        for uid, version in ends.items():
            if version is not None and difference(logs[uid], version, wanted).is_own:
                raise self._refused(
                    f"sinks {', '.join(map(repr, sorted(places)))} of this job write to it, and no version holds what "
                    f"all of them had written by then and nothing later: '{uid}' committed after version {wanted}",
                    "restore a savepoint that was taken while the job was stopped, or into another state directory; "
                    "give each sink a table of its own",
                )
        foreign = changes.foreign(*logs.values())
        if foreign is not None:
            raise self._changed_by_others(foreign, wanted)
        if table.metadata().configuration.get("delta.appendOnly", "").lower() == "true":
            raise self._refused(
                "its property delta.appendOnly forbids that rows are taken away",
                "set delta.appendOnly to false, and restore the savepoint again",
            )
        self._check_files(table, wanted)
        return wanted

    def _end(self, table: DeltaTable, entries: LogEntries, position: Any) -> int | None:
        return before_all(entries, table.version()) if position is None else self._wanted(table, position)

    def _wanted(self, table: DeltaTable, position: Any) -> int:
        version, name = position.get("version"), position.get("table")
        found = str(table.metadata().id)
        if name != found:
            raise self._refused(
                f"it is not the table of the savepoint: its id is {found}, and that one's was {name}",
                "put the table of the savepoint back from a backup, and restore the savepoint again",
            )
        if version > table.version():
            raise self._refused(
                f"the savepoint knows version {version} of it, and the newest one is {table.version()}: it was put "
                "back from a backup",
                "restore a savepoint that is as old as the backup, or put a newer backup back",
            )
        epoch = position.get("epoch")
        held = None if epoch is None else self._epoch_at(table, version, epoch[0])
        if held is not None and held != epoch:
            raise self._refused(
                f"its version {version} is not the one of the savepoint, which held epoch {epoch[1]}: it was put back "
                "from a backup, and written on",
                "put the table of the savepoint back from a newer backup, and restore the savepoint again",
            )
        return int(version)

    def _epoch_at(self, table: DeltaTable, version: int, application: str) -> list[Any] | None:
        """An application id and the number that a version has under it; None if the version cannot be loaded."""
        target = self.target
        try:
            if version != table.version():
                table = DeltaTable(target.location.uri, version=version, storage_options=target.location.options)
        except FAILURES:
            return None
        return [application, table.transaction_version(application)]

    def _check_files(self, table: DeltaTable, version: int) -> None:
        """Refuse a version whose files are gone; those that the table still has are taken to be there."""
        target = self.target
        try:
            past = DeltaTable(target.location.uri, version=version, storage_options=target.location.options)
            missing = _paths(past) - _paths(table)
            if missing:
                # Names are drawn at random, and folders are spelled differently by each library.
                there = {path.rpartition("/")[2] for path in target.location.folder.files(data_only=True)}
                missing = {name for name in missing if not {name, unquote(name)} & there}
        except FAILURES as problem:
            raise self._refused(
                f"version {version} of it cannot be loaded: {problem}",
                "if its log or files were cleaned up, restore a newer savepoint",
            ) from problem
        if missing:
            raise self._refused(
                f"{len(missing)} files of version {version} of it are missing: they were vacuumed",
                "put them back from a backup, or restore a newer savepoint; for later ones, vacuum with a retention "
                "that is longer than savepoints are kept",
            )

    def _changed_by_others(self, entry: LogEntry, version: int) -> StateError:
        return self._refused(
            f"another writer has changed its rows since version {version}, in version {entry.version} "
            f"({entry.operation}), and a roll back would undo that, too",
            f"if the other rows may go as well, RESTORE the table to version {version} yourself, and restore the "
            "savepoint again; otherwise restore the savepoint with another table as the target",
        )

    def _refused(self, what: str, do: str) -> StateError:
        return StateError(f"the table cannot be rolled back: {what}", operator=self.target.who, kept=_KEPT, do=do)


def _gone(entries: LogEntries, newest: int, wanted: int) -> bool:
    """Whether the roll back of another sink has taken commits of this one away, which it has not done itself."""
    since = (entries[version] for version in range(newest, wanted, -1))
    last = next((entry for entry in since if entry.rolled_back or (entry.own and entry.changes_data)), None)
    return last is not None and not last.rolled_back


def _paths(table: DeltaTable) -> set[str]:
    """Names of the files that a version consists of."""
    paths = pa.table(table.get_add_actions().select(["path"])).column("path").to_pylist()
    return {path.rpartition("/")[2] for path in paths}


def _info(claim: Claim, version: int) -> Mapping[str, Any]:
    """What the table's history shows of it, beside the version."""
    return {
        SINK: claim.sink,
        CLAIM: f"roll back of {claim.sink} to version {version}, incarnation {claim.incarnation}",
        "userMetadata": json.dumps(
            {"sink": claim.sink, "incarnation": claim.incarnation, "lineage": claim.lineage, "version": version}
        ),
    }
