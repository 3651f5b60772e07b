"""The master of a `delta` exchange.

_delta_log/   the log, with the description as a table property; see `table.py` and `log.py`
data/         segments, and empty files of entries without rows; see `segments.py`
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_ext.delta.failures import guarded
from spark_ext.exchange.contract import ExchangeMaster, Held
from spark_ext.exchange.delta.log import DeltaLog
from spark_ext.exchange.delta.segments import incarnation_of
from spark_ext.exchange.delta.table import ABOUT, PARTITION_BY, PROPERTIES, refuse_other, table_schema
from spark_ext.exchange.descriptor import Descriptor
from spark_ext.exchange.place import keep_file, put_file_back
from spark_ext.failpoints import FailPoint, reach

if TYPE_CHECKING:
    from spark_ext.exchange.entries import Segment
    from spark_ext.storage import Location


class DeltaMaster(ExchangeMaster):
    """See the module."""

    def __init__(self, location: Location, who: str) -> None:
        self._location, self._who = location, who
        self._log = DeltaLog(location, who)

    @property
    def log(self) -> DeltaLog:
        """See `ExchangeMaster.log`."""
        return self._log

    def register(self, wanted: Descriptor) -> Descriptor:
        """See `ExchangeMaster.register`."""
        found = self.describe()
        if found is None:
            schema = table_schema(wanted.schema, self._who)
            self._log.table.create(
                schema,
                name=wanted.name,
                partition_by=PARTITION_BY,
                configuration={**PROPERTIES, ABOUT: wanted.to_json()},
                own=True,
            )
            found = self.describe()
            assert found is not None
        merged = found.merged(wanted)
        if merged != found:
            self._log.describe(merged.to_json())
        return merged

    def describe(self) -> Descriptor | None:
        """See `ExchangeMaster.describe`."""
        self._log.look()
        if self._log.about is not None:
            return Descriptor.from_json(self._log.about, self._who)
        with guarded(self._log.table.errors, "listing the folder"):
            refuse_other(self._location, self._who)
        return None

    def delete_released(self) -> None:
        """See `ExchangeMaster.delete_released`.

        The files go first, so that the table never forgets one that is still there.
        """
        below = self._log.look().released
        gone = [file for file in self._log.files() if file.entry < below] if below else []
        if not gone:
            return
        for file in gone:
            reach(FailPoint.EXCHANGE_BEFORE_DELETING)
            self._delete(file.path)
        reach(FailPoint.EXCHANGE_BEFORE_DELETING)
        self._log.remove(below)

    def sweep(self, incarnation: int) -> None:
        """See `ExchangeMaster.sweep`."""
        with guarded(self._log.table.errors, "listing the folder"):
            old = [
                path
                for path in self._location.folder.files(data_only=True)
                if 0 < (incarnation_of(path) or 0) < incarnation
            ]
        if not old:
            return
        named = {file.path for file in self._log.files()}
        for path in old:
            if path not in named:
                self._delete(path)

    def _delete(self, path: str) -> None:
        with guarded(self._log.table.errors, "deleting a file"):
            self._location.folder.delete(path)

    def keep(self, segment: Segment, folder: str) -> None:
        """See `ExchangeMaster.keep`."""
        keep_file(self._location.uri, segment, folder)

    def put_back(self, segment: Segment, folder: str) -> Segment:
        """See `ExchangeMaster.put_back`."""
        return put_file_back(self._location.uri, segment, folder)

    def delete(self) -> None:
        """See `ExchangeMaster.delete`."""

    def held(self) -> Held:
        """See `ExchangeMaster.held`."""
        return Held.of(self._log.look(), self._log.held())
