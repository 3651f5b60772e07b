"""The bad rows of an operator before its query's checkpoint is replaced: by a restore, or by a reset."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from spark_ext.bad_rows.lineages import NAME, Ancestry, Cut, condition
from spark_ext.bad_rows.names import FOLDER, EpochName, default_table, sinks_folder
from spark_ext.bad_rows.settle import Settler, may_hold
from spark_ext.bad_rows.table import BadRowsTable, Owner, Role
from spark_ext.model.query_offsets import source_offsets
from spark_ext.spark.logs.spark_log import SparkLog
from spark_ext.storage import Folder, folder_at


@dataclass(frozen=True)
class BadRowsOfJob:
    """The bad rows in the state directory of a job that does not run."""

    job: str
    job_id: str
    state: str
    """Path or URI of the state directory."""
    storage_options: Mapping[str, str]
    """Of the object store, as delta-rs names them."""

    @property
    def _folder(self) -> Folder:
        return folder_at(f"{self.state.rstrip('/')}/{FOLDER}")

    def settle(self, query: str, checkpoint: str, sinks: Mapping[str, int] | None = None) -> list[Owner]:
        """Move what the committed epochs of a checkpoint have left: its log is about to be put aside.

        Args:
            checkpoint: path or URI of the checkpoint directory, which need not exist.

        Returns:
            Under which names the query's sources and sinks add rows.
        """
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

        Args:
            uid: of the source or sink.
            cut: the savepoint's epoch, and the lineage in the source's offset; None: it has nothing of the operator.
            owners: that may still be adding rows, in a driver that was given up; they add none from here on.
            tables: paths or URIs of tables besides that in the state directory.
            newest: the job's newest lineage when the savepoint was taken.
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
