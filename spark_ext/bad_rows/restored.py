"""The bad rows of an operator before its query's checkpoint is replaced, by a restore or a reset; and which count then.

A restore begins a lineage where a savepoint was taken of another one. `lineages.json` beside the table remembers this
of each source, and of each sink as `sink:<uid>`, so that the rows of a savepoint can be told also when several
restores came in between: those of the newest lineage count, and of its ancestors up to where it left.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from spark_ext.bad_rows.names import FOLDER, EpochName, default_table, sinks_folder
from spark_ext.bad_rows.settle import Settler, may_hold
from spark_ext.bad_rows.table import BadRowsTable, Owner, Role
from spark_ext.model.query_offsets import source_offsets
from spark_ext.spark.logs.spark_log import SparkLog
from spark_ext.storage import Folder, folder_at

NAME: Final = "lineages.json"  # the file, in the folder of bad rows of the state directory


@dataclass(frozen=True)
class Cut:
    """A lineage up to an epoch."""

    lineage: int
    epoch: int  # the last one that belongs to it


@dataclass(frozen=True)
class Ancestry:
    """From where each lineage of each source continues."""

    parents: Mapping[str, Mapping[int, Cut]] = field(default_factory=dict)
    """By source and lineage. A lineage that is not there has started from scratch."""

    @classmethod
    def from_json(cls, text: str) -> Ancestry:
        """Read what `to_json` has written."""
        raw = json.loads(text)
        return cls(
            {uid: {int(lineage): Cut(*cut) for lineage, cut in cuts.items()} for uid, cuts in raw["sources"].items()}
        )

    def to_json(self) -> str:
        """The JSON form."""
        sources = {
            uid: {str(lineage): [cut.lineage, cut.epoch] for lineage, cut in sorted(cuts.items())}
            for uid, cuts in sorted(self.parents.items())
        }
        return json.dumps({"version": 1, "sources": sources}, indent=1)

    def continued(self, uid: str, lineage: int, cut: Cut | None) -> Ancestry:
        """With a new lineage of a source, which continues from a cut, or starts from scratch."""
        own = dict(self.parents.get(uid, {}))
        own.pop(lineage, None)
        return Ancestry({**self.parents, uid: own if cut is None else {**own, lineage: cut}})

    def placed(self, uid: str, cut: Cut, newest: int) -> Cut:
        """A cut in the lineage in which it was made, when the job's newest lineage was `newest`.

        A source that has planned nothing since a restore still has the offset, with the lineage, that it had before.
        """
        begun = (lineage for lineage in self.parents.get(uid, {}) if lineage <= newest)
        return Cut(max([cut.lineage, *begun]), cut.epoch)

    def counting(self, uid: str, cut: Cut | None) -> tuple[Cut, ...]:
        """The epochs whose rows belong to a cut: of its lineage and its ancestors; None: nothing had been read."""
        found: list[Cut] = []
        while cut is not None:
            found.append(cut)
            parent = self.parents.get(uid, {}).get(cut.lineage)
            # A lineage has a greater number than that from which it continues.
            cut = parent if parent is not None and parent.lineage < cut.lineage else None
        return tuple(found)


def condition(cuts: tuple[Cut, ...]) -> str:
    """The condition, in SQL, for the rows of these epochs."""
    return " or ".join(f"(lineage = {cut.lineage} and epoch <= {cut.epoch})" for cut in cuts) or "false"


@dataclass(frozen=True)
class BadRowsOfJob:
    """The bad rows in the state directory of a job that does not run."""

    job: str
    job_id: str
    state: str  # path or URI of the state directory
    storage_options: Mapping[str, str]  # of the object store, as delta-rs names them

    @property
    def _folder(self) -> Folder:
        return folder_at(f"{self.state.rstrip('/')}/{FOLDER}")

    def settle(self, query: str, checkpoint: str, sinks: Mapping[str, int] | None = None) -> list[Owner]:
        """Move what committed epochs of a checkpoint have left, before its log is put aside; who may add rows."""
        log = SparkLog(checkpoint)
        if not log.exists() or not may_hold(self._folder):
            return []
        newest = log.newest_commit()
        logged = None if newest is None else log.offsets(newest)
        owners = []
        for uid, offset in ({} if logged is None else source_offsets(logged)).items():
            lineage = offset.lineage
            settler = Settler(self.job, self.job_id, self.state, query, lineage, checkpoint, self.storage_options)
            settler.settle(uid)
            owners.append(Owner(self.job, self.job_id, query, uid, lineage, log.query_id() or ""))
        self._settle_sinks(query, checkpoint, log.query_id() or "")
        for uid, lineage in (sinks or {}).items():
            owners.append(Owner(self.job, self.job_id, query, uid, lineage, log.query_id() or "", "sink"))
        return owners

    def _settle_sinks(self, query: str, checkpoint: str, query_id: str) -> None:
        """The lineage is in the names: what waits is of one, as all that waited was moved when another began."""
        root = folder_at(sinks_folder(self.state, query_id))
        epochs = (EpochName.parse(name) for uid in root.names() for name in root.names(uid))
        for lineage in sorted({epoch.lineage for epoch in epochs if epoch is not None}):
            Settler(self.job, self.job_id, self.state, query, lineage, checkpoint, self.storage_options).settle_sinks()

    def put_back(
        self,
        uid: str,
        lineage: int,
        cut: Cut | None,
        owners: Iterable[Owner],
        tables: Iterable[str] = (),
        *,
        newest: int,
        role: Role = "source",
    ) -> None:
        """Let the rows of an operator count that belong to a savepoint, and no others.

        The cut has the savepoint's epoch and the lineage in the source's offset; None: the savepoint has nothing of the
        operator. `owners` may still be adding rows, in a driver that was given up, and add none from here on. `newest`
        is the job's newest lineage when the savepoint was taken.
        """
        folder = self._folder
        there = folder.names()
        if not there:
            return
        ancestry = Ancestry.from_json(folder.read(NAME).decode()) if NAME in there else Ancestry()
        known = uid if role == "source" else f"sink:{uid}"
        cut = None if cut is None else ancestry.placed(known, cut, newest)
        counts = condition(ancestry.counting(known, cut))
        folder.write(NAME, ancestry.continued(known, lineage, cut).to_json(), durable=True)
        for uri in sorted({default_table(self.state), *tables}):
            table = BadRowsTable(uri, self.storage_options)
            table.close([owner.application for owner in owners if (owner.uid, owner.role) == (uid, role)])
            table.replace(self.job_id, uid, counts, lineage, role)
