"""A job's outputs as they were at an aligned checkpoint: all of them reflect the same input rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from deltalake import DeltaTable

from spark_ext.delta.failures import FAILURES
from spark_ext.errors import CheckpointError, ConfigurationError
from spark_ext.ledger.kinds import CheckpointMode
from spark_ext.ledger.schema import CheckpointRow
from spark_ext.model.checkpoint_metadata import CheckpointMetadata
from spark_ext.queries import operators
from spark_ext.storage import Location

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from spark_ext.ledger import Ledger
    from spark_ext.queries.spec import QuerySpec


@dataclass(frozen=True)
class AsOf:
    """The outputs at one checkpoint."""

    checkpoint: int
    positions: dict[str, Any]
    """By the sink's uid, where its target was; for `delta_2pc` the table's version."""
    paths: dict[str, str]
    """By the sink's uid, the table's path; of `delta_2pc` alone."""
    _stores: Mapping[str, Mapping[str, str]] = field(repr=False)
    """Options of object stores, by the sink's uid."""
    _job: str = field(repr=False)
    _spark: SparkSession = field(repr=False, compare=False)

    def read(self, sink: str) -> DataFrame:
        """The rows of an output; reads the table's version of that time."""
        position = self.positions.get(sink)
        if sink not in self.paths or not isinstance(position, dict) or "version" not in position:
            known = ", ".join(f"'{uid}'" for uid in sorted(self.paths)) or "none"
            raise ConfigurationError(
                f"checkpoint {self.checkpoint} has no version of a table for '{sink}'; it has some for: {known}",
                operator=f"job '{self._job}'",
                kept="nothing was changed",
                do="name a delta_2pc sink of the job; another kind of target does not keep its past",
            )
        self._check_table(sink, position)
        reader = self._spark.read.format("delta").option("versionAsOf", position["version"])
        return reader.load(self.paths[sink])

    def _check_table(self, sink: str, position: Mapping[str, Any]) -> None:
        """Refuse a table that has replaced the one in the checkpoint, or was restored from a backup and written on."""
        version, wanted, (name, epoch) = position["version"], position.get("table"), position.get("epoch", ("", None))
        location = Location.of(self.paths[sink], self._stores.get(sink, {}))
        held = epoch
        try:
            table = DeltaTable(location.uri, version=version, storage_options=location.options)
            found, held = str(table.metadata().id), table.transaction_version(name)
        except FAILURES as problem:
            found = f"unknown, as version {version} cannot be loaded: {problem}"
        if wanted in (None, found) and held != epoch:
            raise self._another(
                f"version {version} of the table at {location.uri} is not the one of checkpoint {self.checkpoint}, "
                f"which held epoch {epoch}: the table was put back from a backup, and written on",
                sink,
            )
        if wanted not in (None, found):
            raise self._another(
                f"the table at {location.uri} is not the one of checkpoint {self.checkpoint}: that one's id was "
                f"{wanted}, and the id of this one is {found}",
                sink,
            )

    def _another(self, what: str, sink: str) -> CheckpointError:
        return CheckpointError(
            what,
            operator=f"job '{self._job}', sink '{sink}'",
            kept="nothing was changed",
            do="put the table of that time, with its log, back from a backup, and read it again",
        )


def as_of(spark: SparkSession, job: str, ledger: Ledger, number: int, specs: Sequence[QuerySpec]) -> AsOf:
    """The outputs at a checkpoint."""
    rows = ledger.table(CheckpointRow).rows([("checkpoint_id", "=", number), ("query", "=", "")])
    done = next((row for row in rows if row.status == "COMPLETED"), None)
    operator = f"job '{job}', checkpoint {number}"
    if done is None:
        statuses = ", ".join(sorted({row.status for row in rows}))
        raise CheckpointError(
            f"the whole job has no completed checkpoint {number}" + (f": it is {statuses}" if rows else ""),
            operator=operator,
            kept="nothing was changed",
            do="use a number that job.checkpoint() returned; job.ledger.checkpoints() lists all",
        )
    if done.mode != CheckpointMode.ALIGNED.value:
        raise CheckpointError(
            f"checkpoint {number} is {done.mode}: its queries had read different parts of the "
            "input, and rows were in flight between them",
            operator=operator,
            kept="nothing was changed",
            do="use an aligned checkpoint: job.checkpoint() takes one",
        )
    metadata = CheckpointMetadata.from_json(done.metadata)
    sinks = {uid: sink for query in metadata.queries.values() for uid, sink in query.sinks.items()}
    positions = {uid: sink.position for uid, sink in sinks.items() if sink.position is not None}
    options = {uid: {name.lower(): value for name, value in sink.options.items()} for uid, sink in sinks.items()}
    paths = {
        uid: Location.of(options[uid]["path"], {}).uri
        for uid, sink in sinks.items()
        if sink.format.lower() == "delta_2pc" and "path" in options[uid]
    }
    made = (operators.sink(spec.sink.format, spec.sink.options) for spec in specs if spec.sink is not None)
    stores = {sink.options.uid: getattr(sink.options, "storage_options", {}) for sink in made}
    return AsOf(number, positions, paths, stores, job, spark)
