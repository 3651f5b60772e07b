"""By which names the columns are found in data files of later versions: columns may be renamed, dropped and added."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

from pyspark.sql.types import StructType

from spark_ext.errors import DataError
from spark_ext.sources.delta_snapshot.channels import has_all
from spark_ext.sources.delta_snapshot.log import Log
from spark_ext.sources.delta_snapshot.version import TableVersion


class ColumnNames:
    """The versions whose column names hold, looked up when a range is read.

    Args:
        load: a version of the table; None: the newest one; `pinned`: it must be there.
    """

    def __init__(
        self, load: Callable[[int | None, bool], TableVersion], log: Log, declared: Callable[[], StructType]
    ) -> None:
        self._load, self._log, self._declared = load, log, declared
        self._planned: dict[int, TableVersion] = {}

    @cached_property
    def now(self) -> TableVersion:
        """The table as it is when this process first needs to know."""
        return self._load(None, False)

    def of(self, version: int | None) -> tuple[TableVersion, ...]:
        """The versions whose column names hold for a range: that of its plan, then the newest one.

        The plan may be older than the query's columns: a new start repeats it, and the query has what was added since.

        Args:
            version: that of the plan; None: an older release has planned the range, and has not noted it.
        """
        if version is None:
            return (self.now,)
        if version not in self._planned:
            self._planned[version] = self._in_force(version)
        found = self._planned[version]
        return (found,) if has_all(self._declared(), found) else (found, self.now)

    def _in_force(self, version: int) -> TableVersion:
        try:
            return self._load(version, True)
        except DataError:
            # The log was cleaned up so far that it has no checkpoint before the version: later commits may say no less.
            for later in range(version + 1, self.now.version + 1):
                commit = self._log.commit(later)
                if commit is None or commit.metadata is not None:
                    raise
            return self.now
