"""The configuration of an epoch, read from outside: from Spark's log of the query, or else from the ledger."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spark_ext.control import stamps
from spark_ext.errors import StateError, StorageError
from spark_ext.ledger.schema import EpochRow
from spark_ext.model.offsets import LoggedOffsets
from spark_ext.model.query_offsets import source_offsets
from spark_ext.options import UID
from spark_ext.spark.logs.spark_log import SparkLog
from spark_ext.storage import child

if TYPE_CHECKING:
    from spark_ext.ledger import Ledger
    from spark_ext.model.configuration import Configuration


@dataclass(frozen=True)
class EpochConfiguration:
    """The configuration that one epoch of a query has."""

    query: str
    epoch: int
    configuration: Configuration
    committed: bool  # whether the epoch is known to be committed; else it is planned, and may be under way

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        found = self.configuration.to_json()
        return {
            "query": self.query,
            "epoch": self.epoch,
            "committed": self.committed,
            "sequence": self.configuration.sequence,
            "config": self.configuration.user(self.query),
            "standing": found["standing"],
            "aligned": found.get("aligned", {}),
        }


def epoch_configuration(ledger: Ledger, query: str, epoch: int | None = None) -> EpochConfiguration | None:
    """The configuration of an epoch: a pure function of its offsets, whichever events have come since.

    Without a number, that of the newest planned epoch. None if the query has not planned the epoch, or its history has
    expired.
    """
    if not UID.fullmatch(query) or (epoch is not None and not 0 <= epoch < 2**63):
        return None
    checkpoint = child(ledger.uri, "queries", query, "checkpoint")
    try:
        log = SparkLog(checkpoint)
        number = log.newest_offsets() if epoch is None else epoch
        logged = None if number is None else log.offsets(number)
        committed = number is not None and log.is_committed(number)
        if logged is None:
            logged, committed = _from_ledger(ledger, query, epoch), True
        if logged is None:
            return None
        found = stamps.configuration(checkpoint, source_offsets(logged).values(), query)
    except (OSError, ValueError) as problem:
        raise StorageError(
            f"the offsets of query '{query}' cannot be read: {type(problem).__name__}: {problem}",
            operator=f"checkpoint {checkpoint}",
            kept="nothing was changed",
            do="repeat the request; check that the state directory can be read",
        ) from problem
    return EpochConfiguration(query, logged.epoch, found, committed)


def _from_ledger(ledger: Ledger, query: str, epoch: int | None) -> LoggedOffsets | None:
    """What the ledger has of an epoch that Spark has deleted, in its newest lineage."""
    if epoch is None:
        return None
    rows = ledger.table(EpochRow).rows([("query", "=", query), ("epoch", "=", epoch)])
    kept = [row for row in rows if row.offsets is not None]
    if not kept:
        return None
    newest = max(kept, key=lambda row: row.lineage)
    if not isinstance(newest.offsets, list):
        raise StateError(
            f"the offsets of epoch {epoch} in the table 'epochs' are not a list",
            operator=f"query '{query}', ledger {ledger.uri}",
            kept="nothing was changed",
            do="restore the table from a backup",
        )
    return LoggedOffsets(epoch, {}, tuple(newest.offsets))
