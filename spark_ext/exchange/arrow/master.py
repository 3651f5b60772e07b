"""The master of an `arrow` exchange.

exchange.json   its description, written once, and replaced when what may change has changed
log/            its log; see `log.py`
data/           its segments; see `segments.py`
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_ext.exchange.arrow.log import ArrowLog
from spark_ext.exchange.arrow.segments import incarnation_of
from spark_ext.exchange.contract import ExchangeMaster, Held
from spark_ext.exchange.descriptor import Descriptor
from spark_ext.exchange.place import DescribedPlace, keep_file, put_file_back
from spark_ext.failpoints import FailPoint, reach

if TYPE_CHECKING:
    from spark_ext.exchange.entries import Segment
    from spark_ext.storage import LocalFolder


class ArrowMaster(ExchangeMaster):
    """See the module. `who` is the exchange, for messages."""

    def __init__(self, folder: LocalFolder, who: str) -> None:
        self._folder = folder
        self._place = DescribedPlace(folder, "arrow", ("data",), who)
        self._log = ArrowLog(folder.below("log"), who)

    @property
    def log(self) -> ArrowLog:
        """See `ExchangeMaster.log`."""
        return self._log

    def register(self, wanted: Descriptor) -> Descriptor:
        """See `ExchangeMaster.register`."""
        return self._place.register(wanted)

    def describe(self) -> Descriptor | None:
        """See `ExchangeMaster.describe`."""
        return self._place.describe()

    def keep(self, segment: Segment, folder: str) -> None:
        """See `ExchangeMaster.keep`."""
        keep_file(self._folder.uri, segment, folder)

    def put_back(self, segment: Segment, folder: str) -> Segment:
        """See `ExchangeMaster.put_back`."""
        return put_file_back(self._folder.uri, segment, folder)

    def delete(self) -> None:
        """See `ExchangeMaster.delete`."""

    def delete_released(self) -> None:
        """See `ExchangeMaster.delete_released`."""
        below = self._log.look().released
        numbers = [number for number in self._log.numbers() if number < below]
        if not numbers:
            return
        reach(FailPoint.EXCHANGE_BEFORE_DELETING)
        self._log.store_state("0")
        for number in numbers:
            entry = self._log.entry(number)
            for segment in entry.segments if entry is not None else ():
                reach(FailPoint.EXCHANGE_BEFORE_DELETING)
                self._folder.delete(f"data/{segment.name}")
        reach(FailPoint.EXCHANGE_BEFORE_DELETING)
        self._log.delete(below)

    def sweep(self, incarnation: int) -> None:
        """See `ExchangeMaster.sweep`."""
        self._log.sweep(incarnation)
        old = [name for name in self._folder.names("data") if 0 < (incarnation_of(name) or 0) < incarnation]
        if not old:
            return
        self._log.look()
        named = {
            segment.name
            for number in self._log.numbers()
            if (entry := self._log.entry(number)) is not None
            for segment in entry.segments
        }
        for name in old:
            if name not in named:
                self._folder.delete(f"data/{name}")

    def held(self) -> Held:
        """See `ExchangeMaster.held`."""
        state = self._log.look()
        entries = {
            number: entry
            for number in self._log.numbers()
            if number >= state.released and (entry := self._log.entry(number)) is not None
        }
        return Held.of(state, entries)
