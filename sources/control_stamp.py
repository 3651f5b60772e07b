"""The source of no rows that `spark_ext.with_control` adds to a query without a source of this package.

Its offsets carry what such a query has no other place for: the control events in force, and the barriers of aligned
checkpoints. It has no channels, and never ends by itself; a drain ends it. Epochs that only it asks for are no input:
they do not keep a query with `available_now` from finishing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from spark_ext.control.with_control import STAMP
from spark_ext.errors import refused
from spark_ext.model.offsets import Position
from spark_ext.sources.contract import Advance, Channel, ChannelSource, Limit

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class ControlStamp(ChannelSource):
    """No rows, in the declared schema. Options: `uid`."""

    only_in_jobs = "it is for the queries of jobs"

    @classmethod
    def name(cls) -> str:
        """The format name."""
        return STAMP

    def schema(self) -> StructType | str:
        """Refused: the columns are those of the control stream."""
        raise refused("it has no schema of its own", f"source '{self.options.uid}'", "use spark_ext.with_control")

    @property
    def bounded(self) -> bool:
        """It never ends by itself."""
        return False

    @property
    def ends_now(self) -> bool:
        """There is nothing to read."""
        return True

    def discover(self) -> Iterable[Channel]:
        """No channels."""
        return ()

    def advance(self, channel: Channel, start: Position, limit: Limit) -> Advance:
        """No channels."""
        return Advance(start)

    def read(self, channel: Channel, start: Position, end: Position) -> Iterator[pa.RecordBatch]:
        """No rows."""
        return iter(())
