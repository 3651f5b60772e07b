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

LEVELS = ("TRACE", "DEBUG", "INFO", "WARN", "ERROR", "OFF")
"""Log levels."""

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


class Value(BaseModel):
    """Base of these models: members that are not known are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class RateLimit(Value):
    """Limits of a source or channel; those that are left out do not exist."""

    rows_per_second: Rate | None = None
    """Rows per second, on average; at most the rows of one second are read at once after a time without input."""
    bytes_per_second: Rate | None = None
    """Bytes per second, for sources that know the sizes of what they read."""
    rows_per_epoch: Count | None = None
    """Rows of one epoch at most."""
    older_than: Duration | None = None
    """The limits hold only for channels whose next rows are older than this, such as a backlog."""

    @model_validator(mode="after")
    def _some(self) -> RateLimit:
        if self.rows_per_second is None and self.bytes_per_second is None and self.rows_per_epoch is None:
            raise PydanticCustomError("rate", "give rows_per_second, bytes_per_second or rows_per_epoch")
        return self


class Sample(Value):
    """Which share of the rows is read."""

    fraction: Annotated[StrictFloat | StrictInt, BeforeValidator(_not_zero), Field(gt=0, le=1, allow_inf_nan=False)]
    """Greater than 0; 1 reads all."""


class TriggerInterval(Value):
    """The minimum time between the starts of two data epochs."""

    interval: Duration
    """0: as fast as possible."""


class CheckpointConfig(Value):
    """Settings of checkpoints; those that are left out are as the job was started with."""

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

    level: Annotated[Literal["TRACE", "DEBUG", "INFO", "WARN", "ERROR", "OFF"], BeforeValidator(_upper)]
    logger: Annotated[str, BeforeValidator(_plain), Field(max_length=200)] = ""
    """Name of the logger; "" for the root."""


class SetConfig(Value):
    """One key of the user's configuration."""

    key: Name
    value: Json = None
    """Any JSON."""
    unset: StrictBool = False
    """Whether the key is removed."""


class ConfigSchema(Value):
    """What values a key may have."""

    key: Name
    json_schema: Annotated[dict[str, Any] | bool, Field(alias="schema")]
    """A JSON Schema (2020-12); `true` takes anything."""

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

    path: Annotated[str, BeforeValidator(_plain), Field(min_length=1, max_length=4_000)]
    """A folder that is empty or missing: absolute path or URI, as the driver sees it."""
    aligned: StrictBool = False
    """Whether it is taken where a barrier has passed all queries, so that nothing is in flight."""


class Dump(Value):
    """What is dumped beside the stacks."""

    heap: StrictBool = False
    """Whether the heap of the driver's JVM is, which stands still meanwhile."""


class Seek(Value):
    """Where a channel continues."""

    position: Json
    """In the form of the source's own positions; see its page."""
    yes: StrictBool = False
    """Has to be true: rows are skipped, or read again."""


class Broadcast(Value):
    """An event of the user's own."""

    type: Name
    """Functions read events by their type."""
    value: Json = None
    """Any JSON."""


class FinalEpoch(RootModel[Count]):
    """Which of the epochs after the end of input is asked for, from 1."""


class Renamed(Value):
    """A query has another name, and with it what stands for it."""

    old: Name
    new: Name
    lineage: StrictInt
    """Which the old name has since then; each rename of a job has a higher one than those before."""


class Align(Value):
    """The checkpoint behind whose barrier aligned events are to take effect, and these."""

    checkpoint: StrictInt
    sequences: list[StrictInt]


class Release(Value):
    """What comes of that for one of them: the barrier has passed all queries, or it did not."""

    sequence: StrictInt
    event_id: str
    checkpoint: StrictInt
    void: StrictBool = False
    """Whether the checkpoint was aborted instead: nothing changes, and its events may be given another one."""
    withdrawn: StrictBool = False
    """Whether the event is given up instead: it never takes effect."""
