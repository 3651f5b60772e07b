"""The exchange `delta`: a Delta table, for a state directory in an object store, or anywhere else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_ext.exchange.contract import Parts
from spark_ext.exchange.delta.master import DeltaMaster
from spark_ext.exchange.delta.segments import DeltaReader, DeltaWriter

if TYPE_CHECKING:
    from spark_ext.storage import Location


def delta_parts(location: Location, who: str) -> Parts:
    """The parts of the exchange in a table."""
    return Parts(DeltaMaster(location, who), DeltaWriter(location), DeltaReader(location))
