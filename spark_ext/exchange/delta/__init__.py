"""The exchange `delta`: a Delta table, for a state directory in an object store, or anywhere else."""

from __future__ import annotations

from typing import ClassVar

from spark_ext.exchange.contract import ExchangeKind, KindOptions, Parts
from spark_ext.exchange.delta.master import DeltaMaster
from spark_ext.exchange.delta.segments import DeltaReader, DeltaWriter
from spark_ext.storage import Location, check_for_delta


class DeltaKind(ExchangeKind[KindOptions]):
    """See the module."""

    name: ClassVar[str] = "delta"

    def parts(self, place: str, options: KindOptions, operator: str) -> Parts:
        """See `ExchangeKind.parts`."""
        location = Location.of(place, {})
        check_for_delta(location, operator)
        return delta_parts(location, operator)


def delta_parts(location: Location, who: str) -> Parts:
    """The parts of the exchange in a table."""
    return Parts(DeltaMaster(location, who), DeltaWriter(location), DeltaReader(location))
