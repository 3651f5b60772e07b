"""The ledger's tables as Spark DataFrames, for users."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_ext.ledger import schema
from spark_ext.ledger.columns import arrow_schema

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from spark_ext.ledger.ledger import Ledger


class LedgerFrames:
    """One method per table; each returns the table as it is now. A table that does not exist yet is an empty frame.

    Times are shown in the session's time zone; JSON columns are strings, for `from_json` or `get_json_object`.
    """

    def __init__(self, ledger: Ledger, spark: SparkSession, channel_state: Callable[[Ledger], pa.Table]) -> None:
        self._ledger = ledger
        self._spark = spark
        self._channel_state = channel_state

    def channel_state(self) -> DataFrame:
        """Where each channel of each source stands, and what is in flight to it, as of the newest committed epochs.

        `query`, `source`, `channel`; `state` (`RUNNING` or `FINISHED`); `position` (JSON in the source's own form);
        `epoch` and `lineage` in which it stands there; of a source that reads an exchange `exchange` and
        `rows_in_flight`, the rows of that partition which are written and which it has not committed. Both are null
        elsewhere, position and epoch before the first epoch.
        """
        return self._spark.createDataFrame(self._channel_state(self._ledger))

    def jobs(self) -> DataFrame:
        """Starts, ends and resets of the job, and its queries that were renamed or removed."""
        return self._frame(schema.JobRow)

    def definitions(self) -> DataFrame:
        """What the queries were made of."""
        return self._frame(schema.DefinitionRow)

    def checkpoints(self) -> DataFrame:
        """Steps of checkpoints."""
        return self._frame(schema.CheckpointRow)

    def finished(self) -> DataFrame:
        """Finished flags of channels, sources and queries."""
        return self._frame(schema.FinishedRow)

    def epochs(self) -> DataFrame:
        """Committed epochs."""
        return self._frame(schema.EpochRow)

    def control_events(self) -> DataFrame:
        """Control events that were accepted."""
        return self._frame(schema.ControlEventRow)

    def control_transitions(self) -> DataFrame:
        """What has become of control events."""
        return self._frame(schema.ControlTransitionRow)

    def control_requests(self) -> DataFrame:
        """Requests to the REST server, and its answers."""
        return self._frame(schema.ControlRequestRow)

    def execution_states(self) -> DataFrame:
        """States that the job and its queries have entered."""
        return self._frame(schema.ExecutionStateRow)

    def latencies(self) -> DataFrame:
        """How long rows took from sources to the commits of queries."""
        return self._frame(schema.LatencyRow)

    def exchanges(self) -> DataFrame:
        """What has happened to the exchanges between the queries."""
        return self._frame(schema.ExchangeRow)

    def incidents(self) -> DataFrame:
        """Failures and other notable events."""
        return self._frame(schema.IncidentRow)

    def incident_changes(self) -> DataFrame:
        """When incidents were opened and resolved, and how often they happened."""
        return self._frame(schema.IncidentChangeRow)

    def bad_rows(self) -> DataFrame:
        """How many bad rows of sources were moved into their table, by epoch."""
        return self._frame(schema.BadRowsRow)

    def _frame(self, row_type: type[schema.Row]) -> DataFrame:
        table = self._ledger.table(row_type)
        # The folder exists a moment before the first commit makes it a table.
        table.refresh()
        if table.version is not None:
            return self._spark.read.format("delta").load(table.uri)
        return self._spark.createDataFrame(arrow_schema(row_type).empty_table())
