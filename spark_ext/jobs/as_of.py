"""A job's outputs as they were at an aligned checkpoint: all of them reflect the same input rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from spark_ext.datafiles.location import Location
from spark_ext.errors import CheckpointError, ConfigurationError
from spark_ext.ledger.kinds import CheckpointMode
from spark_ext.ledger.schema import CheckpointRow
from spark_ext.model.checkpoint_metadata import CheckpointMetadata

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from spark_ext.ledger import Ledger


@dataclass(frozen=True)
class AsOf:
    """The outputs at one checkpoint."""

    checkpoint: int
    positions: dict[str, Any]
    """By the sink's uid, where its target was; for `delta_2pc` the table's version."""
    paths: dict[str, str]
    """By the sink's uid, the table's path; of `delta_2pc` alone."""
    _job: str = field(repr=False)
    _spark: SparkSession = field(repr=False, compare=False)

    def read(self, sink: str) -> DataFrame:
        """The rows of an output; reads the table's version of that time.

        Args:
            sink: uid of a `delta_2pc` sink.

        Raises:
            ConfigurationError: there is no such output, or its past cannot be read.
        """
        position = self.positions.get(sink)
        if sink not in self.paths or not isinstance(position, dict) or "version" not in position:
            known = ", ".join(f"'{uid}'" for uid in sorted(self.paths)) or "none"
            raise ConfigurationError(
                f"checkpoint {self.checkpoint} has no version of a table for '{sink}'; it has some for: {known}",
                operator=f"job '{self._job}'",
                kept="nothing was changed",
                do="name a delta_2pc sink of the job; another kind of target does not keep its past",
            )
        reader = self._spark.read.format("delta").option("versionAsOf", position["version"])
        return reader.load(self.paths[sink])


def as_of(spark: SparkSession, job: str, ledger: Ledger, number: int) -> AsOf:
    """The outputs at a checkpoint.

    Raises:
        CheckpointError: there is no such checkpoint, or it is not aligned.
        StateError, StorageError: the ledger cannot be read.
    """
    rows = ledger.table(CheckpointRow).rows([("checkpoint_id", "=", number), ("query", "=", "")])
    done = next((row for row in rows if row.status == "COMPLETED"), None)
    who = f"job '{job}', checkpoint {number}"
    if done is None:
        statuses = ", ".join(sorted({row.status for row in rows}))
        raise CheckpointError(
            f"there is no completed checkpoint {number} of the whole job" + (f": it is {statuses}" if rows else ""),
            operator=who,
            kept="nothing was changed",
            do="use a number that job.checkpoint() returned; job.ledger.checkpoints() lists all",
        )
    if done.mode != CheckpointMode.ALIGNED.value:
        raise CheckpointError(
            f"checkpoint {number} is {done.mode or 'of an older release'}: its queries had read different parts of the "
            "input, and rows were in flight between them",
            operator=who,
            kept="nothing was changed",
            do="use an aligned checkpoint: job.checkpoint() takes one",
        )
    metadata = CheckpointMetadata.from_json(done.metadata)
    sinks = {uid: sink for query in metadata.queries.values() for uid, sink in query.sinks.items()}
    positions = {uid: sink.position for uid, sink in sinks.items() if sink.position is not None}
    paths = {}
    for uid, sink in sinks.items():
        options = {name.lower(): value for name, value in sink.options.items()}
        if sink.format.lower() == "delta_2pc" and "path" in options:
            paths[uid] = Location.of(options["path"], {}).uri
    return AsOf(number, positions, paths, job, spark)
