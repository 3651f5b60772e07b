"""A lookup as a user holds it: a table beside the rows of a job, in a version that each epoch fixes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_ext.control.current import current
from spark_ext.datafiles.uri import shown
from spark_ext.errors import DataError, EnvironmentProblem, SparkExtError, StateError, TransientError, refused
from spark_ext.jobs.lookup_rows import LookupRows
from spark_ext.model.control import JOB
from spark_ext.options import UID, byte_count
from spark_ext.queries.writer_checks import NOTHING_STARTED
from spark_ext.sources.delta_snapshot.whole import columns_of, read_whole
from spark_ext.storage import Location

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from spark_ext.control.current import InForce

KIND: Final = "lookup_version"  # the control event that puts a version into force
HELD: Final = 2  # versions of a lookup that a process holds: that of the present epoch, and of a neighbour
MATCHES: Final = "__spark_ext_matches"
RESTORE: Final = (
    "put the files of this version back from a backup: the epoch is repeated with it. Or restore the job from a "
    "savepoint. Set delta.deletedFileRetentionDuration longer than a version is in use"
)

_KEYS: Final = (
    T.StringType,
    T.BinaryType,
    T.BooleanType,
    T.ByteType,
    T.ShortType,
    T.IntegerType,
    T.LongType,
    T.DecimalType,
    T.DateType,
    T.TimestampType,
    T.TimestampNTZType,
)

_held: OrderedDict[tuple[Any, ...], LookupRows] = OrderedDict()
_lock = threading.Lock()


@dataclass(frozen=True)
class Lookup:
    """A Delta table that functions and joins of a job's queries use. `Job.lookup` makes it.

    The version of the table is a part of each epoch: all tasks of an epoch and all its replays see the same one. It
    changes only with the control event `reload`. A Python process reads a version once, and holds two at most.

    It may be used in functions that Spark runs for the rows of a query: capture it in their closures.
    """

    job: str
    name: str
    """Unique in the job."""
    path: str
    """Absolute path or URI of the table."""
    schema: T.StructType
    """Its columns, as they were declared."""
    key: tuple[str, ...]
    """The columns by which `get` finds a row; each combination of values is in one row at most."""
    max_bytes: int
    """The most memory that a version may take in Arrow's format."""

    @classmethod
    def declared(
        cls, job: str, name: str, path: str, columns: Sequence[str] | None, key: Sequence[str], max_bytes: str | int,
        version: int | None,
    ) -> Lookup:  # fmt: skip
        """Check what a user has declared; the columns are those of a version, None: of the newest one."""
        operator = f"job '{job}', lookup '{name}'"
        if not UID.fullmatch(name):
            raise refused(
                f"'{name}' cannot be a lookup's name",
                operator,
                "use letters, digits and . _ ~ -, beginning with a letter or digit, at most 128",
                NOTHING_STARTED,
            )
        try:
            size = byte_count(max_bytes)
        except ValueError as problem:
            raise refused(f"max_bytes: {problem}", operator, "give a size such as '256 MB'", NOTHING_STARTED) from None
        uri = Location.of(path, {}).uri
        there = _columns(uri, version, operator)
        names = tuple(there.names if columns is None else columns)
        for column in (*names, *key):
            if column not in there.names or (column in key and column not in names) or names.count(column) > 1:
                what = "is named twice" if names.count(column) > 1 else f"is not among {', '.join(there.names)}"
                raise refused(f"column '{column}' {what}", operator, "correct columns or key", NOTHING_STARTED)
        found = cls(job, name, uri, T.StructType([there[column] for column in names]), tuple(key), size)
        found._check_keys(key)
        return found

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
        """The row with these values of the key columns, in the version that the epoch has; None if there is none.

        Raises:
            ConfigurationError: the lookup has no key, or another number of columns in it.
            DataError: a value is not of its column's type.
            StateError, StorageError: as `table`.
        """
        if len(key) != len(self.key) or not key:
            what = f"get takes {len(self.key)} values, and was given {len(key)}" if self.key else "it has no key"
            raise refused(
                what, self._who, "declare the columns with job.lookup(..., key=...), and give a value of each"
            )
        try:
            return self._present().one(self.key, key)
        except ValueError as problem:
            raise DataError(
                f"{key!r} is not a key of {', '.join(self.key)}: {problem}",
                operator=self._who,
                kept="everything up to the previous epoch; no row of this one was committed",
                do="convert the values to the types of the columns",
            ) from None

    # -- in a plan ----------------------------------------------------------------------------------------------------

    def join(self, df: DataFrame, on: str | Sequence[str], how: str = "left") -> DataFrame:
        """The rows of a frame, each with the table's columns of every row that matches it, as in SQL.

        Spark's own join would fix the table when the query starts. Here tasks look rows up in the version of their
        epoch, in Python. The frame's columns stay as they are, watermarks included. A null matches nothing; a row that
        several rows of the table match comes once for each of them.

        Args:
            df: a frame of a query of the job.
            on: columns that the frame and the table both have, of equal types: numbers other than float and double,
                texts, binary, booleans, dates and times.
            how: `left`, rows without a match have nulls; or `inner`, they are left out.

        Raises:
            ConfigurationError: a column is missing, of another type, or in both; or nothing is left to be added.
            EnvironmentProblem: the version of Spark is before 4.1.
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
        struct = T.StructType([self.schema[name] for name in added])

        def matches(*asked: pa.Array) -> pa.Array:
            return self._present().lists(names, asked, added)

        function = F.arrow_udf(matches, T.ArrayType(struct, False))  # type: ignore[call-overload]
        spread = F.explode_outer if how == "left" else F.explode
        found = df.withColumn(MATCHES, spread(function(*map(_column, names))))
        return found.select(*map(_column, df.columns), *(F.col(MATCHES)[name].alias(name) for name in added))

    def _check_join(self, df: DataFrame, names: tuple[str, ...], added: tuple[str, ...], how: str) -> None:
        def refuse(what: str, do: str) -> SparkExtError:
            return refused(what, self._who, do, NOTHING_STARTED)

        if how not in ("left", "inner"):
            raise refuse(f"how is {how!r}", "use left or inner")
        there = [name.lower() for name in df.columns]
        for name in names:
            if name not in df.columns or name not in self.schema.names:
                where = "the frame" if name not in df.columns else "the lookup"
                raise refuse(f"column '{name}' is not in {where}", "join on columns that both have, or rename one")
            given, held = df.schema[name].dataType, self.schema[name].dataType
            if given != held:
                do = f"cast it in the frame to {held.simpleString()}"
                what = f"column '{name}' is {given.simpleString()} in the frame and {held.simpleString()} in the lookup"
                raise refuse(what, do)
        self._check_keys(names)
        for name in dict.fromkeys(df.columns):
            if there.count(name.lower()) > 1 or name == MATCHES:
                raise refuse(f"the frame has two columns '{name}', or one with this name", "rename the column")
        for name in added:
            if name.lower() in there:
                do = "rename it in the frame, or leave it out with job.lookup(..., columns=...)"
                raise refuse(f"column '{name}' is in the frame and in the lookup", do)
        if not names or not added:
            raise refuse(
                "the join has no columns" if not names else "the lookup has no column but those of the join",
                "name at least one in on, and one more in job.lookup(..., columns=...)",
            )

    def _check_keys(self, names: Sequence[str]) -> None:
        for name in names:
            if not isinstance(self.schema[name].dataType, _KEYS):
                raise refused(
                    f"column '{name}' is {self.schema[name].dataType.simpleString()}, by whose values no row is found",
                    self._who,
                    "use numbers other than float and double, texts, binary, booleans, dates or times",
                    NOTHING_STARTED,
                )

    # -- versions -----------------------------------------------------------------------------------------------------

    @property
    def _who(self) -> str:
        return f"job '{self.job}', lookup '{self.name}'"

    def read_version(self, version: int | None, do: str) -> LookupRows:
        """Read a version (None: the newest one), and check its columns, size and key; `do` is the way out.

        Raises:
            StateError: it cannot be read, lacks a column, is too large, or has a key twice.
            TransientError: the storage cannot be reached.
        """
        try:
            found = LookupRows(*read_whole(self.path, version, self.schema, self.max_bytes, self.name, self._who))
        except TransientError:
            raise
        except SparkExtError as problem:
            number = "the newest version" if version is None else f"version {version}"
            raise self._version_lost(
                f"{number} of '{shown(self.path)}' cannot be used: {problem.what}", do
            ) from problem
        repeated = found.repeated(self.key) if self.key else None
        if repeated is not None:
            raise self._version_lost(
                f"several rows of version {found.version} of '{shown(self.path)}' have the key {dict(repeated)}",
                f"correct the table, then {do}; or declare the lookup without key",
            )
        return found

    def check_version(self, value: Mapping[str, Any], do: str) -> None:
        """Refuse a version, as an event names it, that is not there any more; raises as `read_version`."""
        found = self.read_version(value["version"], do)
        if found.table_id != value["table"]:
            raise self._version_replaced(value, do)

    def _present(self) -> LookupRows:
        found = current()
        value = found.configuration.of(KIND, JOB, self.name)
        if value is None:
            raise self._unknown(found)
        place = (self.job, self.name, self.path, tuple(self.schema.names), value["table"], value["version"])
        with _lock:
            rows = _held.get(place)
            if rows is None:
                rows = self.read_version(value["version"], RESTORE)
                if rows.table_id != value["table"]:
                    raise self._version_replaced(value, RESTORE)
                _held[place] = rows
                for old in [one for one in _held if one[:4] == place[:4]][:-HELD]:
                    del _held[old]
            _held.move_to_end(place)
        return rows

    def _version_lost(self, what: str, do: str) -> StateError:
        return StateError(what, operator=self._who, kept="everything that was committed", do=do)

    def _version_replaced(self, value: Mapping[str, Any], do: str) -> StateError:
        return self._version_lost(
            f"the table at '{shown(self.path)}' is not the one whose version {value['version']} is in force: it was "
            "deleted, and another one was created there",
            do,
        )

    def _unknown(self, found: InForce) -> StateError:
        return StateError(
            f"no version of lookup '{self.name}' is in force here: the query has only sources of Spark's own, or the "
            "epoch was planned before the lookup was declared",
            operator=found.operator,
            kept="everything up to the previous epoch; no row of this one was committed",
            do="add sx.with_control(df, uid=...) to a query of Spark's own sources; to complete an interrupted epoch, "
            "start the job once as it was before",
        )


def _columns(uri: str, version: int | None, operator: str) -> T.StructType:
    """Those of a version; if it is gone, which the start will refuse, those of the newest one."""
    try:
        return columns_of(uri, version, operator)
    except SparkExtError as problem:
        if version is None:
            raise refused(
                problem.what,
                operator,
                "correct the path; if another query of the job writes the table, declare the lookup in the function of "
                "the query that uses it, with job.add(..., after=...)",
                NOTHING_STARTED,
            ) from problem
        return columns_of(uri, None, operator)


def _column(name: str) -> Any:
    return F.col(f"`{name.replace('`', '``')}`")
