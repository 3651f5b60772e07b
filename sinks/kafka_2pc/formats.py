"""Keys and values in Avro, by a schema registry: options, what is registered, and the encoding in tasks.

Messages are encoded before they are staged, so an attempt to commit publishes the bytes that the task has staged. An
epoch that is replayed is encoded again by the same schema, which has the same id as long as the registry remembers it.
"""

from __future__ import annotations

import io
import json
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, cast

import pyarrow as pa
from pydantic import Field, field_validator, model_validator
from pyspark.sql import types as T

from spark_ext.clients.kafka import KafkaOptions
from spark_ext.clients.library import load
from spark_ext.clients.pinned_schemas import OwnSchema, Pinned, pin
from spark_ext.clients.schema_registry import HEADER_BYTES, Registry, RegistryOptions
from spark_ext.errors import NOTHING_VISIBLE, DataError, refused
from spark_ext.schemas.avro import Unsupported, spark_type
from spark_ext.schemas.avro_decoder import decoder
from spark_ext.schemas.avro_rows import OUTERMOST, Unfit, avro_schema, check_same, writer

if TYPE_CHECKING:
    pass


COLUMNS: Final = ("key", "value")  # The columns that have a format
_RECORD: Final = r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*"


class FormatOptions(KafkaOptions, RegistryOptions):
    """Options of the topic of messages, and of the formats of their keys and values."""

    topic: str | None = Field(default=None, min_length=1)  # Of all messages; overrides the column `topic`
    value_format: Literal["bytes", "avro"] = "bytes"  # `bytes`: texts or bytes as they are
    value_subject: str | None = Field(default=None, min_length=1)  # `<topic>-value`
    value_version: int | None = Field(default=None, ge=1)  # Default: a schema made from the column's type
    value_record: str | None = Field(default=None, pattern=f"^{_RECORD}$")  # Full name in a schema that is made
    key_format: Literal["bytes", "avro"] = "bytes"  # How keys are encoded, as `value_format`
    key_subject: str | None = Field(default=None, min_length=1)  # `<topic>-key`
    key_version: int | None = Field(default=None, ge=1)  # An existing version of it, as `value_version`
    key_record: str | None = Field(default=None, pattern=f"^{_RECORD}$")  # Full name of the record, as `value_record`
    auto_register: bool = True  # Whether a schema made from a column's type is registered if its subject lacks it

    @field_validator("value_version", "key_version", mode="before")
    @classmethod
    def _by_number(cls, value: object) -> object:
        if value == "latest":
            raise ValueError("name a version by its number: the latest one may change while the query runs")
        return value

    @model_validator(mode="after")
    def _formats_together(self) -> FormatOptions:
        encoded = self.encoded
        if encoded and self.schema_registry_url is None:
            raise ValueError(f"{encoded[0]}_format=avro needs schema_registry_url")
        for name in ("schema_registry_url", "schema_registry_options", "auto_register"):
            if not encoded and getattr(self, name) not in (None, {}, True):
                raise ValueError(f"{name} needs value_format=avro or key_format=avro")
        for column in COLUMNS:
            for part in ("subject", "version", "record"):
                if self.of(column, part) is not None and column not in encoded:
                    raise ValueError(f"{column}_{part} needs {column}_format=avro")
            if self.of(column, "version") is not None and self.of(column, "record") is not None:
                raise ValueError(f"{column}_record needs a schema that is made from the rows, without {column}_version")
            if column in encoded and self.of(column, "subject") is None and self.topic is None:
                raise ValueError(f"{column}_subject is needed, because the option 'topic' is not set")
        return self

    def of(self, column: str, part: str) -> Any:
        """The option of a column."""
        return getattr(self, f"{column}_{part}")

    @property
    def encoded(self) -> tuple[str, ...]:
        """The columns that are encoded."""
        return tuple(column for column in COLUMNS if self.of(column, "format") == "avro")

    def subject(self, column: str) -> str:
        """The subject of a column's schema."""
        return cast(str, self.of(column, "subject")) or f"{self.topic}-{column}"


class Encoder:
    """Encodes the values of a column."""

    def __init__(self, column: str, kind: T.DataType, pinned: Pinned, who: str) -> None:
        self._column, self._id, self._who = column, pinned.id, who
        schema = json.loads(pinned.text)
        try:
            self._convert = writer(kind, spark_type(schema))
        except Unsupported as problem:
            what = f"version {pinned.version} of the subject '{pinned.subject}'" if pinned.version else "its schema"
            raise refused(
                f"the column '{column}' cannot be written by {what}: {problem}",
                who,
                "select the columns of the schema with their types, or name another version",
            ) from None
        self._schema = load("fastavro", "schemas", who).parse_schema(schema)
        # The library does not check logical types and cuts off what they cannot hold; schemas of our own hold all.
        self._decode = decoder(self._schema, self._schema) if pinned.version else None
        # These are the library's to convert, which knows the years 1 to 9999; it writes other times as numbers.
        self._millis = "timestamp-millis" in pinned.text
        self._kind = kind
        self._header = b"\0" + pinned.id.to_bytes(4, "big")

    def encoded(self, column: pa.Array) -> pa.Array:
        """The values as bytes; null stays null."""
        from spark_ext.schemas.casts import counted

        if not self._millis:
            column = column.cast(counted(column.type))
        try:
            values = column.to_pylist()
        except (ValueError, OverflowError) as problem:  # a time that Python does not have
            raise self._unfit(problem) from problem
        return pa.array([None if value is None else self._bytes(value) for value in values], pa.binary())

    def _bytes(self, value: Any) -> bytes:
        from fastavro import schemaless_writer

        out = io.BytesIO()
        out.write(self._header)
        try:
            schemaless_writer(out, self._schema, value if self._convert is None else self._convert(value))
            content = out.getvalue()
            if self._decode is not None:
                check_same(value, self._as_given(self._decode(content, HEADER_BYTES)[0]))
        except Exception as problem:  # The library raises what its own writing happens to run into.
            raise self._unfit(problem) from problem
        return content

    def _as_given(self, value: Any) -> Any:
        if not self._millis:
            return value
        from spark_ext.schemas.arrow import arrow_type

        return pa.array([value], arrow_type(self._kind))[0].as_py()

    def _unfit(self, problem: Exception) -> DataError:
        how = str(problem) if isinstance(problem, Unfit) else f"{type(problem).__name__}: {problem}"
        return DataError(
            f"the {self._column} of a row does not fit the schema {self._id}: {how}",
            operator=self._who,
            kept=NOTHING_VISIBLE,
            do="correct or filter such rows in the query, or write with on_bad_row=quarantine",
        )


class Formats:
    """The encoding of a sink's messages."""

    def __init__(self, options: FormatOptions, schema: T.StructType, who: str) -> None:
        self._options, self._who = options, who
        self._kinds = {name: schema[name].dataType for name in options.encoded if name in schema.names}

    def check(self) -> None:
        """Refuse columns that cannot be encoded, and schemas that cannot be registered. Nothing is registered."""
        load("fastavro", "schemas", self._who)
        for column in self._options.encoded:
            if column not in self._kinds:
                raise refused(f"column '{column}' does not exist, and {column}_format=avro", self._who, "select it")
            version = self._options.of(column, "version")
            if version is None:
                self._own(column).check()
            else:
                self._encoder(column, pin(self._registry(), "avro", self._options.subject(column), version, None))

    def _registry(self) -> Registry:
        return Registry(self._options, self._options.request_timeout / 1000, self._who)

    def _own(self, column: str) -> OwnSchema:
        try:
            schema = avro_schema(self._kinds[column], self._options.of(column, "record") or OUTERMOST)
        except Unsupported as problem:
            what = f"the column '{column}' has no form in Avro: {problem}"
            raise refused(what, self._who, "cast it in the query, to a string for example") from None
        return OwnSchema(self._registry(), self._options.subject(column), schema, register=self._options.auto_register)

    def take(self) -> dict[str, Encoder]:
        """The encoders; registers what is not registered."""
        return {column: self._encoder(column, self._pinned(column)) for column in self._kinds}

    def _pinned(self, column: str) -> Pinned:
        version = self._options.of(column, "version")
        if version is None:
            return self._own(column).take()
        return pin(self._registry(), "avro", self._options.subject(column), version, None)

    def _encoder(self, column: str, pinned: Pinned) -> Encoder:
        return Encoder(column, self._kinds[column], pinned, self._who)


def encoded(batch: pa.RecordBatch, encoders: Mapping[str, Encoder]) -> pa.RecordBatch:
    """A batch with its columns encoded."""
    names = batch.schema.names
    columns = [
        encoders[name].encoded(column) if name in encoders else column
        for name, column in zip(names, batch.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, names=names)


_MOST_KEPT: Final = 100
_kept: dict[tuple[object, ...], dict[str, Encoder]] = {}  # Each worker process asks the registry once per start


def kept_encoders(
    options: FormatOptions, schema: T.StructType, start: Collection[object], who: str
) -> dict[str, Encoder]:
    """The encoders that this process keeps for a start of a job."""
    if not options.encoded:
        return {}
    key = (*start, options.model_dump_json(), schema.json())
    if key not in _kept:
        if len(_kept) >= _MOST_KEPT:
            _kept.clear()
        _kept[key] = Formats(options, schema, who).take()
    return _kept[key]
