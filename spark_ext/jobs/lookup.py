"""A lookup as a user holds it: a table beside the rows of a job, in a version that each epoch fixes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_ext.control.current import current
from spark_ext.datafiles.uri import shown
from spark_ext.errors import (
    ConfigurationError,
    DataError,
    EnvironmentProblem,
    SparkExtError,
    StateError,
    TransientError,
    refused,
)
from spark_ext.jobs.lookup_rows import LookupRows
from spark_ext.model.control import JOB
from spark_ext.options import UID, byte_count
from spark_ext.queries.writer_checks import NOTHING_STARTED
from spark_ext.sources.delta_snapshot.whole import columns_of, read_whole
from spark_ext.storage import Location

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

KIND: Final = "lookup_version"  # the control event that puts a version into force
HELD: Final = 2  # versions of a lookup that a process holds: that of the present epoch, and the one before
MATCHES: Final = "__spark_ext_matches"
NOT_KEYS: Final = (T.FloatType, T.DoubleType, T.ArrayType, T.MapType, T.StructType, T.NullType, T.VariantType)
RESTORE: Final = (
    "put the files of this version back from a backup: the epoch is repeated with it. Or restore the job from a "
    "savepoint. Set delta.deletedFileRetentionDuration longer than a version is in use"
)

_held: OrderedDict[tuple[Any, ...], LookupRows] = OrderedDict()
_lock = threading.Lock()


@dataclass(frozen=True)
class Lookup:
    """A Delta table that functions and joins of a job's queries use. `Job.lookup` makes it.

    The version of the table is a part of each epoch: all tasks of an epoch and all its replays see the same one. It
    changes only with the control event `reload`. A Python process reads a version once, and holds two at most.

    Functions that Spark runs for the rows of a query may capture it in their closures.
    """

    job: str
    name: str
    """Unique in the job."""
    path: str
    """Absolute path or URI of the table."""
    schema: T.StructType
    """Its columns, as they were declared."""
    key: tuple[str, ...]
    """The columns by which `get` finds a row."""
    max_bytes: int
    """The most memory that a version may take in Arrow's format."""

    @classmethod
    def declared(cls, job: str, name: str, path: str, *, version: int | None, **given: Any) -> Lookup:
        """Check what a user has given to `Job.lookup`; the columns are those of a version, None: of the newest one."""
        found = cls(job, name, Location.of(path, {}).uri, T.StructType(), tuple(given["key"]), 0)
        if not UID.fullmatch(name):
            do = "use letters, digits and . _ ~ -, beginning with a letter or digit, at most 128"
            raise found._refusal(f"'{name}' cannot be a lookup's name", do)
        try:
            size = byte_count(given["max_bytes"])
        except ValueError as problem:
            raise found._refusal(f"max_bytes: {problem}", "give a size such as '256 MB'") from None
        there = found._columns(version)
        names = tuple(there.names if given["columns"] is None else given["columns"])
        for column in names:
            if column not in there.names or names.count(column) > 1:
                wrong = "is named twice" if column in there.names else f"is not among {', '.join(there.names)}"
                raise found._refusal(f"column '{column}' {wrong}", "correct columns")
        made = cls(job, name, found.path, T.StructType([there[column] for column in names]), found.key, size)
        made._check_keys(made.key)
        return made

    def _columns(self, version: int | None) -> T.StructType:
        """Those of a version; if it is gone, which the start will refuse, those of the newest one."""
        try:
            return columns_of(self.path, version, self._who)
        except SparkExtError as problem:
            if version is not None:
                return self._columns(None)
            do = "correct the path; if another query of the job writes the table, declare the lookup in the function "
            raise self._refusal(problem.what, f"{do}of the query that uses it: job.add(..., after=...)") from problem

    # -- in an epoch --------------------------------------------------------------------------------------------------

    def table(self) -> pa.Table:
        """The rows of the version that the epoch has, with the declared columns.

        Raises:
            StateError: the calling code does not belong to an epoch of the job, the query cannot obey control events,
                or the version cannot be read any more.
            StorageError: the storage cannot be reached; the epoch is repeated.
        """
        return self._present().rows

    def get(self, *key: Any) -> dict[str, Any] | None:
        """The row with this key in the version that the epoch has, or None.

        Raises:
            ConfigurationError: the lookup has no key, or another number of columns in it.
            DataError: a value is not of its column's type.
            StateError, StorageError: as `table`.
        """
        if len(key) != len(self.key) or not key:
            do = "declare key=... with job.lookup, and give a value of each of its columns"
            raise self._refusal(f"its key has {len(self.key)} columns, and {len(key)} values are given", do)
        try:
            return self._present().get(key)
        except ValueError as problem:
            raise DataError(
                f"{key!r} is not a key of {', '.join(self.key)}: {problem}",
                operator=self._who,
                kept="everything up to the previous epoch; no row of this one was committed",
                do="convert the values to the types of the columns",
            ) from None

    # -- in a plan ----------------------------------------------------------------------------------------------------

    def join(self, df: DataFrame, on: str | Sequence[str], how: str = "left") -> DataFrame:
        """The rows of a frame, each with the table's other columns of every row that matches it, as in SQL.

        Spark's own join would fix the table when the query starts. Here tasks look rows up in the version of their
        epoch, in Python. The frame's columns stay as they are, watermarks included. A null matches nothing; a row that
        several rows of the table match comes once for each of them.

        Args:
            df: a frame of a query of the job.
            on: columns that the frame and the table both have, of equal types; not float, double or nested ones.
            how: `left`, rows without a match have nulls; or `inner`, they are left out.

        Raises:
            ConfigurationError: a column is missing, of another type, or in both; or nothing is left to be added.
            EnvironmentProblem: Spark is older than 4.1.
        """
        names = (on,) if isinstance(on, str) else tuple(on)
        added = tuple(name for name in self.schema.names if name not in names)
        self._check_join(df, names, added, how)
        if not hasattr(F, "arrow_udf"):
            raise EnvironmentProblem(
                "this version of Spark has no functions over Arrow arrays",
                operator=self._who,
                kept=NOTHING_STARTED,
                do="use Spark 4.1 or newer, or call table() in mapInArrow",
            )

        def matches(*asked: pa.Array) -> pa.Array:
            return self._present().lists(names, asked, added)

        # mapInArrow would lose the watermarks of the frame's columns.
        lists = T.ArrayType(T.StructType([self.schema[name] for name in added]), False)
        function = F.arrow_udf(matches, lists)  # type: ignore[call-overload]
        spread = F.explode_outer if how == "left" else F.explode
        found = df.withColumn(MATCHES, spread(function(*map(_column, names))))
        return found.select(*map(_column, df.columns), *(F.col(MATCHES)[name].alias(name) for name in added))

    def _check_join(self, df: DataFrame, names: tuple[str, ...], added: tuple[str, ...], how: str) -> None:
        there = [name.lower() for name in df.columns]
        if how not in ("left", "inner"):
            raise self._refusal(f"how is {how!r}", "use left or inner")
        if not names or not added:
            do = "name at least one column in on, and declare another one with job.lookup(..., columns=...)"
            raise self._refusal("the join has no column to look rows up by, or none to add", do)
        self._check_keys(names)
        for name in names:
            given = df.schema[name].dataType.simpleString() if name in df.columns else "not there"
            if name not in df.columns or df.schema[name].dataType != self.schema[name].dataType:
                held = self.schema[name].dataType.simpleString()
                do = f"cast it to {held} in the frame, or rename another column"
                raise self._refusal(f"column '{name}' of the frame is {given}, and {held} in the lookup", do)
        for name in (*df.columns, *added):
            if there.count(name.lower()) > (name not in added) or name == MATCHES:
                do = "rename it in the frame, or leave it out with job.lookup(..., columns=...)"
                raise self._refusal(f"column '{name}' would be there twice", do)

    def _check_keys(self, names: Sequence[str]) -> None:
        for name in names:
            if name not in self.schema.names:
                raise self._refusal(f"column '{name}' is not in the lookup", "name a column that it has")
            if isinstance(self.schema[name].dataType, NOT_KEYS):
                what = f"column '{name}' is {self.schema[name].dataType.simpleString()}, which is no type of a key"
                raise self._refusal(what, "use numbers other than float and double, texts, binary, booleans or times")

    # -- versions -----------------------------------------------------------------------------------------------------

    def read_version(self, version: int | None, do: str) -> LookupRows:
        """Read a version (None: the newest one), and check its columns, size and key; `do` is the way out.

        Raises:
            StateError: it cannot be read, lacks a column, is too large, or has a key twice.
            TransientError: the storage cannot be reached.
        """
        try:
            found = LookupRows(
                *read_whole(self.path, version, self.schema, self.max_bytes, self.name, self._who), self.key
            )
        except TransientError:
            raise
        except SparkExtError as problem:
            which = "the newest version" if version is None else f"version {version}"
            raise self._unusable(f"{which} of '{shown(self.path)}' cannot be used: {problem.what}", do) from problem
        if (repeated := found.repeated) is not None:
            what = f"several rows of version {found.version} of '{shown(self.path)}' have the key {dict(repeated)}"
            raise self._unusable(what, f"declare the lookup without key; or {do}")
        return found

    def read_in_force(self, value: Mapping[str, Any], do: str) -> LookupRows:
        """Read the version that an event names, of the same table; raises as `read_version`."""
        found = self.read_version(value["version"], do)
        if found.table_id != value["table"]:
            what = f"the table at '{shown(self.path)}' is not the one whose version {value['version']} is in force: it"
            raise self._unusable(f"{what} was deleted, and another one was created there", do)
        return found

    def _present(self) -> LookupRows:
        found = current()
        value = found.configuration.of(KIND, JOB, self.name)
        if value is None:
            raise StateError(
                f"no version of lookup '{self.name}' is in force here: the query has only sources of Spark's own, or "
                "the epoch was planned before the lookup was declared",
                operator=found.operator,
                kept="everything up to the previous epoch; no row of this one was committed",
                do="add sx.with_control(df, uid=...) to a query of Spark's own sources; to complete an interrupted "
                "epoch, start the job once as it was before",
            )
        mine = (self.job, self.name, self.path, tuple(self.schema.names), self.key)
        place = (*mine, value["table"], value["version"])
        with _lock:
            if place not in _held:
                _held[place] = self.read_in_force(value, RESTORE)
                for old in [one for one in _held if one[: len(mine)] == mine][:-HELD]:
                    del _held[old]
            _held.move_to_end(place)
            return _held[place]

    @property
    def _who(self) -> str:
        return f"job '{self.job}', lookup '{self.name}'"

    def _refusal(self, what: str, do: str) -> ConfigurationError:
        return refused(what, self._who, do, NOTHING_STARTED)

    def _unusable(self, what: str, do: str) -> StateError:
        return StateError(what, operator=self._who, kept="everything that was committed", do=do)


def _column(name: str) -> Any:
    return F.col(f"`{name.replace('`', '``')}`")
