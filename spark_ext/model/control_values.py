"""The values of the built-in kinds of control events, as models that check them. Pure."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    RootModel,
    StrictBool,
    StrictFloat,
    StrictInt,
    model_validator,
)
from pydantic_core import PydanticCustomError

from spark_ext.model import json_schemas
from spark_ext.options import milliseconds

_MOST = 10**15


def _not_zero(value: Any) -> Any:
    if not isinstance(value, bool) and value == 0:
        raise PydanticCustomError("zero", "a rate of 0 is no limit; use pause")
    return value


def _duration(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise PydanticCustomError("duration", "a duration is a number of milliseconds, or text such as '10 s'")
    try:
        return milliseconds(value)
    except (ValueError, OverflowError) as problem:
        raise PydanticCustomError("duration", "{problem}", {"problem": str(problem)}) from None


def _upper(value: Any) -> Any:
    return value.upper() if isinstance(value, str) else value


def _plain(value: Any) -> Any:
    if isinstance(value, str) and "\x00" in value:
        raise PydanticCustomError("text", "text may not contain the character NUL")
    return value


Rate = Annotated[StrictInt | StrictFloat, BeforeValidator(_not_zero), Field(gt=0, le=_MOST, allow_inf_nan=False)]
Count = Annotated[StrictInt, BeforeValidator(_not_zero), Field(gt=0, le=_MOST)]
Duration = Annotated[int, BeforeValidator(_duration, json_schema_input_type=int | str), Field(ge=0, le=_MOST)]
"""A number of milliseconds, or text such as `10 s`; stored as milliseconds."""
Name = Annotated[str, BeforeValidator(_plain), Field(min_length=1, max_length=200)]
Json = Any


def about(text: str) -> Any:
    """The description of a member, for the API and the command line."""
    return Field(description=text)


class Value(BaseModel):
    """Base of these models: members that are not known are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class RateLimit(Value):
    """Limits of a source or channel; None means no limit."""

    rows_per_second: Annotated[Rate | None, about("Rows per second, on average.")] = None
    bytes_per_second: Annotated[Rate | None, about("Bytes per second, if the source knows row sizes.")] = None
    rows_per_epoch: Annotated[Count | None, about("Maximum number of rows in an epoch.")] = None
    older_than: Annotated[
        Duration | None, about("Apply the limits only to channels whose next rows are older than this, such as 1h.")
    ] = None

    @model_validator(mode="after")
    def _some(self) -> RateLimit:
        if self.rows_per_second is None and self.bytes_per_second is None and self.rows_per_epoch is None:
            raise PydanticCustomError("rate", "give rows_per_second, bytes_per_second or rows_per_epoch")
        return self


class Sample(Value):
    """Which share of the rows is read."""

    fraction: Annotated[
        StrictFloat | StrictInt,
        BeforeValidator(_not_zero),
        Field(gt=0, le=1, allow_inf_nan=False, description="Share of the rows, above 0; 1 reads all."),
    ]


class TriggerInterval(Value):
    """The minimum time between the starts of two data epochs."""

    interval: Annotated[Duration, about("Such as 10s; 0 means as fast as possible.")]


class CheckpointConfig(Value):
    """Settings of checkpoints; None means the setting with which the job was started."""

    checkpoint_interval: Annotated[Duration, Field(gt=0)] | None = None
    checkpoint_timeout: Annotated[Duration, Field(gt=0)] | None = None
    aligned_timeout: Duration | None = None
    tolerable_failed_checkpoints: Annotated[StrictInt, Field(ge=0, le=_MOST)] | None = None
    retained_checkpoints: Annotated[StrictInt, Field(ge=0, le=1_000)] | None = None

    @model_validator(mode="after")
    def _some(self) -> CheckpointConfig:
        if not self.model_fields_set:
            raise PydanticCustomError("empty", "give at least one setting")
        return self


class LogLevel(Value):
    """The level of one logger, or of all."""

    level: Annotated[
        Literal["TRACE", "DEBUG", "INFO", "WARN", "ERROR", "OFF"],
        BeforeValidator(_upper),
        about("TRACE, DEBUG, INFO, WARN, ERROR or OFF."),
    ]
    logger: Annotated[
        str, BeforeValidator(_plain), Field(max_length=200, description="Name of the logger. Default: the root.")
    ] = ""


class SetConfig(Value):
    """One key of the user's configuration."""

    key: Annotated[Name, about("Name of the key.")]
    value: Annotated[Json, about("Any JSON.")] = None
    unset: Annotated[StrictBool, about("Remove the key.")] = False


class ConfigSchema(Value):
    """What values a key may have."""

    key: Annotated[Name, about("Name of the key.")]
    json_schema: Annotated[
        dict[str, Any] | bool, Field(alias="schema", description="A JSON Schema (2020-12); true accepts any value.")
    ]

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    @model_validator(mode="after")
    def _is_schema(self) -> ConfigSchema:
        try:
            json_schemas.check(self.json_schema)
        except ValueError as problem:
            raise PydanticCustomError("schema", "it is not a JSON Schema: {why}", {"why": str(problem)}) from None
        return self


class Savepoint(Value):
    """Where a savepoint goes."""

    path: Annotated[
        str,
        BeforeValidator(_plain),
        Field(
            min_length=1,
            max_length=4_000,
            description="An empty or missing folder: absolute path or URI, as the driver sees it.",
        ),
    ]
    aligned: Annotated[StrictBool, about("Take it once a barrier has passed all queries: no rows are in flight.")] = (
        False
    )


class Dump(Value):
    """What is dumped."""

    scope: Annotated[
        Literal["all", "driver"], about("Stacks of 'all' processes of the job (the default), or of the 'driver' only.")
    ] = "all"
    heap: Annotated[
        StrictBool, about("Also write the heap of the driver's JVM, which pauses until the heap is written.")
    ] = False

    @model_validator(mode="after")
    def _heap_of_all(self) -> Dump:
        if self.heap and self.scope == "driver":
            raise PydanticCustomError("heap", "the heap is part of the scope 'all' only")
        return self


class Seek(Value):
    """Where a channel continues."""

    position: Annotated[Json, about("JSON, in the form of the source's positions; see the source's page.")]
    yes: Annotated[StrictBool, about("Must be true: confirms that rows are skipped, or read again.")] = False


class Broadcast(Value):
    """An event of the user's own."""

    type: Annotated[Name, about("Functions select events by their type.")]
    value: Annotated[Json, about("Any JSON.")] = None


class FinalEpoch(RootModel[Count]):
    """Number of the epoch after the end of input, from 1."""


class Renamed(Value):
    """A query has another uid; its standing events follow it."""

    old: Name
    new: Name
    lineage: StrictInt  # the lineage of the rename; increases with each rename of a job


class Reload(Value):
    """A lookup, and the version that is used from now on."""

    lookup: Annotated[Name, about("Name of the lookup.")]
    version: Annotated[
        Annotated[StrictInt, Field(ge=0)] | None, about("Version of the table. Default: the newest.")
    ] = None


class LookupVersion(Value):
    """The version of a lookup, and the request for it."""

    lookup: Name
    version: StrictInt
    table: str  # the table's id
    path: str  # as it may be shown
    event_id: str = ""  # the event that asked for it; "": the start of the job did
    sequence: StrictInt = 0  # of that event


class Align(Value):
    """The checkpoint whose barrier puts aligned events into force, and the sequences of these events."""

    checkpoint: StrictInt
    sequences: list[StrictInt]


class Release(Value):
    """The outcome for one of these events."""

    sequence: StrictInt
    event_id: str
    checkpoint: StrictInt
    void: StrictBool = False
    """Whether the checkpoint was aborted: nothing changes, and its events may be assigned to another one."""
    withdrawn: StrictBool = False  # whether the event is withdrawn: it never takes effect
