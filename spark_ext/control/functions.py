"""What functions of the user's see of control events: the configuration and the events of the epoch they run in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from spark_ext.control.current import BroadcastEvent, UserConfiguration, current
from spark_ext.errors import DataError, refused
from spark_ext.model.offsets import Json
from spark_ext.schemas.casts import cast
from spark_ext.spark.backend.contract import name_of_read
from spark_ext.worker_internals import to_arrow_type

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType

_LONGEST_KEY = 200


def config() -> UserConfiguration:
    """The user's configuration in the epoch to which the calling code belongs: what `set_config` has set.

    A key that was set for the query hides the job's. All tasks of an epoch see the same, on all machines and on a
    replay, whatever has been set since. A query without such events has an empty configuration.

    May be called in UDFs of all kinds, `mapInArrow`, `mapInPandas`, `applyInPandas`, stateful processors and
    `foreachBatch`; in sources and sinks: `advance` and whatever else plans an epoch sees what the source itself will
    obey in it, `read`, `write` and `commit` that of their epoch. The first call of an epoch reads two small files, each
    further one takes about a microsecond.

    Returns:
        A mapping that cannot be changed.

    Raises:
        StateError: the calling code does not belong to an epoch of a job.
        OSError: the query's checkpoint directory cannot be read.
    """
    return current().user


def events(type: str | None = None) -> tuple[BroadcastEvent, ...]:
    """The user's events (`broadcast`, `emit`) that take effect with the epoch to which the calling code belongs.

    Each event belongs to one epoch of each query that it concerns: the first one after it was noticed. All tasks of
    that epoch see it, also those of a replay; no other epoch does. An epoch may have no rows, and then runs no
    functions for rows: what has to see every event belongs into `foreachBatch`, a sink's `commit`, or a stream of the
    format `control`.

    Args:
        type: only events of this type; None: all.

    Returns:
        The events in their order.

    Raises:
        StateError: the calling code does not belong to an epoch of a job.
        OSError: the query's checkpoint directory cannot be read.
    """
    found = current().events
    return found if type is None else tuple(event for event in found if event.type == type)


def value(key: str, type: str | DataType, default: Json = None) -> Column:
    """A column with the value that a key of the user's configuration has in the epoch.

        df.where(F.col("score") > sx.control.value("threshold", "double", 0.5))

    Args:
        key: as in `set_config`.
        type: of the column: Spark's, or as DDL. Text is converted where that is possible, so timestamps are ISO 8601.
        default: the value while the key is not set.

    Raises:
        ConfigurationError: the key or type is malformed, or the default does not have the type.

    When the query runs, a value that cannot be converted is a DataError, and the lack of an epoch a StateError.
    """
    from pyspark.sql import functions as F

    operator = f"sx.control.value({key!r})"
    if not isinstance(key, str) or not 0 < len(key) <= _LONGEST_KEY:
        raise refused(f"a key has 1 to {_LONGEST_KEY} characters", operator, "give the key that set_config sets")
    kind = _parsed(type, operator)
    if default is not None:
        try:
            _scalar(default, kind)
        except ValueError as problem:
            raise refused(
                f"the default {default!r} is not a value of type {kind.simpleString()}: {problem}",
                operator,
                "give a default of this type",
            ) from problem

    def scalar() -> pa.Scalar:
        found = current()
        given = found.user.get(key, default)
        try:
            return _scalar(given, kind)
        except ValueError as problem:
            raise DataError(
                f"the value of the key '{key}' is {str(given)[:100]!r}, which is not of type {kind.simpleString()}: "
                f"{problem}",
                operator=found.operator,
                kept="everything up to the previous epoch; no row of this one was committed",
                do="the epoch keeps its configuration: read the key as string in the query, convert it there with "
                "try_cast, and start the job again. A schema of the key (spark-ext control STATE schema, the kind "
                "config_schema) that this value conforms to had it accepted: correct that, too",
            ) from problem

    def control_value(rows: pa.Array) -> pa.Array:
        return pa.repeat(scalar(), len(rows))

    def control_value_of_row(_: int) -> Any:
        return scalar().as_py(maps_as_pydicts="strict")

    name = name_of_read(key, kind.simpleString())
    for one in (control_value, control_value_of_row):
        setattr(one, "__name__", name)  # noqa: B010 - by which the driver finds in a plan what is read
    has_arrow = hasattr(F, "arrow_udf")  # since Spark 4.1
    function = F.arrow_udf(control_value, kind) if has_arrow else F.udf(control_value_of_row, kind)  # type: ignore[call-overload]
    # Spark computes what is deterministic and has no column only once, before there is an epoch.
    found: Column = function.asNondeterministic()(F.lit(0))
    return found


def _parsed(given: str | DataType, operator: str) -> DataType:
    from pyspark.errors import PySparkException
    from pyspark.sql.types import DataType

    if isinstance(given, DataType):
        return given
    try:
        return DataType.fromDDL(given)
    except PySparkException as problem:
        raise refused(
            f"{given!r} is not a type: {problem}", operator, "give a type as DDL, such as double"
        ) from problem


def misfit(given: Json, kind: str) -> str:
    """Why a JSON value is not one of a type, given as Spark's `simpleString`; "" if it is.

    Also "" for a type that only Spark can parse, and in an environment without pyspark.
    """
    try:
        from spark_ext.schemas.ddl import columns

        wanted = columns(f"value {kind}").fields[0].dataType
    except (ImportError, ValueError):
        return ""
    try:
        _scalar(given, wanted)
    except ValueError as problem:
        return str(problem)
    return ""


def _scalar(given: Json, kind: DataType) -> pa.Scalar:
    """A JSON value as a value of a type; raises ValueError if it is none."""
    wanted = to_arrow_type(kind)
    try:
        return pa.array([_prepared(given, wanted)], wanted)[0]
    except (pa.ArrowException, TypeError, OverflowError, AttributeError) as problem:
        raise ValueError(str(problem)) from problem


def _prepared(given: Any, wanted: pa.DataType) -> Any:
    """The value in the form that Arrow takes for the type, which would otherwise cut off fractions, for one."""
    if given is None:
        return None
    if pa.types.is_list(wanted):
        if not isinstance(given, list):
            raise ValueError("it is no list")
        return [_prepared(one, wanted.value_type) for one in given]
    if pa.types.is_map(wanted):
        return [(_prepared(key, wanted.key_type), _prepared(one, wanted.item_type)) for key, one in given.items()]
    if pa.types.is_struct(wanted):
        return {field.name: _prepared(given.get(field.name), field.type) for field in wanted}
    if isinstance(given, bool) and not pa.types.is_boolean(wanted):
        raise ValueError("it is a boolean")
    if isinstance(given, float) and given.is_integer() and pa.types.is_integer(wanted):
        return int(given)
    if isinstance(given, (int, float)) and pa.types.is_decimal(wanted):
        given = str(given)
    if isinstance(given, (str, float)) and not pa.types.is_string(wanted):
        return cast(pa.array([given]), wanted)[0].as_py()
    return given
