"""The exchange `arrow`: Arrow files in a folder that driver and executors share."""

from __future__ import annotations

from spark_ext.exchange.arrow.master import ArrowMaster
from spark_ext.exchange.arrow.segments import ArrowReader, ArrowWriter
from spark_ext.exchange.contract import Parts
from spark_ext.storage import LocalFolder


def arrow_parts(folder: LocalFolder, who: str) -> Parts:
    """The parts of the exchange in a folder; `who` is the exchange, for messages."""
    data = folder.below("data")
    return Parts(ArrowMaster(folder, who), ArrowWriter(data), ArrowReader(data))
