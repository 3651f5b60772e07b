"""The master of a `kafka` exchange.

exchange.json   its description
topics.json     its topics; see `topics.py`
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from spark_ext.exchange.contract import ExchangeMaster, Held
from spark_ext.exchange.kafka import segments
from spark_ext.exchange.kafka.log import KafkaLog
from spark_ext.exchange.kafka.order import Stored
from spark_ext.exchange.place import DescribedPlace
from spark_ext.failpoints import FailPoint, reach

if TYPE_CHECKING:
    from spark_ext.exchange.descriptor import Descriptor
    from spark_ext.exchange.entries import Segment
    from spark_ext.exchange.kafka.topics import Topics
    from spark_ext.storage import Folder

_KEY: Final = re.compile(rb"i(\d+)-.*")


class KafkaMaster(ExchangeMaster):
    """See the module."""

    def __init__(self, folder: Folder, topics: Topics, who: str) -> None:
        self._place, self._topics = DescribedPlace(folder, "kafka", (), who), topics
        self._log = KafkaLog(topics, who)

    @property
    def log(self) -> KafkaLog:
        """See `ExchangeMaster.log`."""
        return self._log

    def register(self, wanted: Descriptor) -> Descriptor:
        """See `ExchangeMaster.register`."""
        found = self._place.register(wanted)
        self._topics.make(found.name)
        return found

    def describe(self) -> Descriptor | None:
        """See `ExchangeMaster.describe`."""
        return self._place.describe()

    def delete_released(self) -> None:
        """See `ExchangeMaster.delete_released`.

        The rows go first, as the log says which they are.
        """
        order, names = self._log.order(), self._topics.found()
        if names is None or not order.state.released:
            return
        for partition, offset in sorted(order.first_needed().items()):
            if self._topics.ends(names.rows, partition)[0] < offset:
                reach(FailPoint.EXCHANGE_BEFORE_DELETING)
                self._topics.delete_before(names.rows, {partition: offset})
        before = order.deletable
        if before is not None and self._topics.ends(names.log, 0)[0] < before:
            reach(FailPoint.EXCHANGE_BEFORE_DELETING)
            self._topics.delete_before(names.log, {0: before})
        self._log.store_state()  # for the deletion after the next release

    def sweep(self, incarnation: int) -> None:
        """See `ExchangeMaster.sweep`.

        Kafka deletes from the beginning of a partition: what nobody names behind rows that are needed goes with them.
        """
        order, names = self._log.order(), self._topics.found()
        if names is None:
            return
        needed = {Stored.of(one.name).partition for one in order.segments}
        for partition in range(names.partitions):
            low, high = self._topics.ends(names.rows, partition)
            begin = max(low, order.ends.get(partition, 0))
            if partition in needed or begin >= high:
                continue
            end = high
            for offset, key, _ in self._topics.read(names.rows, partition, begin, high):
                match = _KEY.fullmatch(key)
                if match is None or int(match[1]) >= incarnation:
                    end = offset
                    break
            if end > low:
                self._topics.delete_before(names.rows, {partition: end})

    def keep(self, segment: Segment, folder: str) -> None:
        """See `ExchangeMaster.keep`."""
        segments.keep(self._topics, segment, folder)

    def put_back(self, segment: Segment, folder: str) -> Segment:
        """See `ExchangeMaster.put_back`."""
        return segments.put_back(self._topics, segment, folder)

    def delete(self) -> None:
        """See `ExchangeMaster.delete`."""
        self._topics.delete()

    def held(self) -> Held:
        """See `ExchangeMaster.held`."""
        order = self._log.order()
        return Held.of(order.state, order.entries)
