"""The exchange `arrow`: Arrow files in a folder that driver and executors share."""

from __future__ import annotations

from pathlib import Path

from spark_ext.exchange.arrow.master import ArrowMaster
from spark_ext.exchange.arrow.segments import ArrowReader, ArrowWriter
from spark_ext.exchange.contract import Parts


def arrow_parts(folder: Path, who: str) -> Parts:
    """The parts of the exchange in a folder."""
    data = folder / "data"
    return Parts(ArrowMaster(folder, who), ArrowWriter(data), ArrowReader(data))
