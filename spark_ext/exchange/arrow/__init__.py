"""The exchange `arrow`: Arrow files in a folder that driver and executors share."""

from __future__ import annotations

from typing import ClassVar

from spark_ext.errors import ConfigurationError
from spark_ext.exchange.arrow.master import ArrowMaster
from spark_ext.exchange.arrow.segments import ArrowReader, ArrowWriter
from spark_ext.exchange.contract import NOTHING_STARTED, ExchangeKind, KindOptions, Parts
from spark_ext.storage import LocalFolder, local_path


class ArrowKind(ExchangeKind[KindOptions]):
    """See the module."""

    name: ClassVar[str] = "arrow"

    def parts(self, place: str, options: KindOptions, operator: str) -> Parts:
        """See `ExchangeKind.parts`."""
        local = local_path(place)
        if local is None:
            raise ConfigurationError(
                f"an exchange of the kind 'arrow' needs a folder that driver and executors share, and '{place}' is not "
                "one",
                operator=operator,
                kept=NOTHING_STARTED,
                do="use the kind 'delta', or keep the job's state on a shared file system",
            )
        return arrow_parts(LocalFolder(local.expanduser().absolute()), operator)


def arrow_parts(folder: LocalFolder, who: str) -> Parts:
    """The parts of the exchange in a folder; `who` is the exchange, for messages."""
    data = folder.below("data")
    return Parts(ArrowMaster(folder, who), ArrowWriter(data), ArrowReader(data))
