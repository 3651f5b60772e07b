"""Bytes of messages and events as columns: Avro, Protobuf and JSON, also by the schemas of a registry.

Each record is decoded by the schema with which it was written, and resolved to the one that was pinned when the query
was defined, so that its columns stay what they are. A record that cannot be decoded is a bad row.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, ClassVar, Final, Literal, cast

import pyarrow as pa
from pydantic import AfterValidator, Field, model_validator
from pyspark.sql import types as T

from spark_ext.clients.pinned_schemas import Pinned, pin
from spark_ext.clients.schema_registry import (
    HEADER_BYTES,
    InvalidSchema,
    NoSuchSchema,
    Registry,
    RegistryOptions,
    kept_registry,
)
from spark_ext.errors import ConfigurationError, refused
from spark_ext.ingest.typed_rows import rows_of
from spark_ext.options import Milliseconds
from spark_ext.schemas.arrow import arrow_type
from spark_ext.schemas.avro import Unsupported
from spark_ext.schemas.avro import spark_type as type_of_avro
from spark_ext.schemas.avro_decoder import decoder as avro_decoder
from spark_ext.schemas.protobuf import indexes
from spark_ext.schemas.protobuf import spark_type as type_of_message

MOST_INDEXES: Final = 100  # of nested messages


class Undecodable(Exception):
    """A key or value that is not what it should be; the text says why."""


class Decoder(ABC):
    """Turns bytes into values of one type."""

    kind: T.DataType

    @abstractmethod
    def value(self, content: bytes) -> Any:
        """The value, as Arrow takes it."""

    def column(self, contents: Sequence[bytes | None], bad: Callable[[int, str], object]) -> pa.Array:
        """All values of a batch; what is bad is null, and its row and why go to `bad`."""
        kind = arrow_type(self.kind)
        values: list[Any] = []
        for row, content in enumerate(contents):
            value = None
            if content is not None:
                try:
                    value = self.value(content)
                except Undecodable as problem:
                    bad(row, str(problem))
            values.append(value)
        try:
            return pa.array(values, kind)
        except (pa.ArrowException, OverflowError, ValueError, TypeError):
            for row, value in enumerate(values):
                try:
                    pa.array([value], kind)
                except (pa.ArrowException, OverflowError, ValueError, TypeError) as problem:
                    bad(row, f"it does not fit {self.kind.simpleString()}: {problem}")
                    values[row] = None
            return pa.array(values, kind)


class JsonText(Decoder):
    """JSON as text, which is checked; with or without the framing of a registry."""

    kind = T.StringType()

    def value(self, content: bytes) -> str:
        """The text."""
        try:
            text = _unframed(content).decode()
            # Numbers stay text: Python refuses long ones, and takes NaN for one.
            json.loads(text, parse_int=str, parse_float=str, parse_constant=_no_number)
        except (ValueError, RecursionError) as problem:
            raise Undecodable(f"it is not JSON: {problem}") from None
        return text


class JsonFields(Decoder):
    """JSON objects as declared fields, by the rules of `files`; with or without the framing of a registry."""

    def __init__(self, kind: T.StructType) -> None:
        self.kind = kind

    def value(self, content: bytes) -> Any:
        """One object."""
        why: list[str] = []
        (found,) = self.column([content], lambda _, reason: why.append(reason)).to_pylist()
        if why:
            raise Undecodable(why[0])
        return found

    def column(self, contents: Sequence[bytes | None], bad: Callable[[int, str], object]) -> pa.Array:
        """All objects, parsed at once."""
        left = {row: None for row, content in enumerate(contents) if content is not None}
        places = list(left)

        def refuse(at: int, reason: str) -> None:
            del left[places[at]]
            bad(places[at], reason)

        found = rows_of([_unframed(contents[row] or b"") for row in places], cast("T.StructType", self.kind), refuse)
        fields = list(arrow_type(self.kind))
        objects = pa.StructArray.from_arrays(found.columns, fields=fields)
        at = {row: index for index, row in enumerate(left)}
        return objects.take(pa.array([at.get(row) for row in range(len(contents))], pa.int64()))


def _unframed(content: bytes) -> bytes:
    """Without the framing of a registry: no JSON begins with a zero."""
    return content[HEADER_BYTES:] if content[:1] == b"\0" else content


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is no number")


def schema_id(content: bytes) -> int:
    """The id of the schema with which a record was written."""
    if len(content) < HEADER_BYTES or content[0] != 0:
        raise Undecodable("it does not begin with a zero and the id of a schema, as records of a registry do")
    return int.from_bytes(content[1:HEADER_BYTES], "big")


class Avro(Decoder):
    """Avro, resolved to the pinned schema."""

    def __init__(self, pinned: Pinned, registry: Callable[[], Registry], who: str) -> None:
        self._pinned, self._registry = pinned, registry
        try:
            self.kind = type_of_avro(json.loads(pinned.text))
        except Unsupported as problem:
            raise no_form(pinned, problem, who) from None
        self._decoders: dict[int, Callable[[bytes, int], tuple[Any, int]]] = {}

    @cached_property
    def _reader(self) -> Any:
        from fastavro import parse_schema

        return parse_schema(json.loads(self._pinned.text))

    def _writer(self, id: int) -> Any:
        if id == self._pinned.id:
            return self._reader
        registry = self._registry()
        try:
            found = registry.schema(id)
            if (found.schema_type or "AVRO") != "AVRO":
                raise Undecodable(f"it was written with the schema {id}, which is of another format")
            return registry.avro(found)
        except NoSuchSchema:
            raise Undecodable(f"it was written with the schema {id}, which the registry does not have") from None
        except InvalidSchema as problem:
            raise Undecodable(f"it was written with the schema {id}, which {problem}") from None

    def value(self, content: bytes) -> Any:
        """The value, resolved."""
        if (id := schema_id(content)) not in self._decoders:
            writer = self._writer(id)
            try:
                self._decoders[id] = avro_decoder(writer, self._reader)
            except Exception as problem:  # whatever schemas and defaults run into that are none
                raise Undecodable(f"the schema {id} cannot be read: {type(problem).__name__}: {problem}") from None
        try:
            found, end = self._decoders[id](content, HEADER_BYTES)
        except (EOFError, ValueError, OverflowError, RecursionError) as problem:
            raise Undecodable(f"it is not of the schema {id}: {type(problem).__name__}: {problem}") from None
        if end != len(content):
            raise Undecodable(f"it is longer than a value of the schema {id}")
        return found


class Protobuf(Decoder):
    """Protobuf, read by the pinned schema: fields that it does not have are left out, others have their defaults."""

    def __init__(self, pinned: Pinned, who: str) -> None:
        from google.protobuf.message_factory import GetMessageClass

        from spark_ext.clients.proto_compiler import descriptor

        found = descriptor(pinned.text, pinned.message)
        assert found is not None, "it was there when it was pinned"
        try:
            self.kind, self._convert = type_of_message(found)
        except Unsupported as problem:
            raise no_form(pinned, problem, who) from None
        self._name, self._indexes = found.full_name, indexes(found)
        self._class = GetMessageClass(found)

    def value(self, content: bytes) -> Any:
        """The value."""
        from google.protobuf.message import DecodeError

        schema_id(content)
        places, rest = _indexes(content[HEADER_BYTES:])
        if places != self._indexes:
            raise Undecodable(f"it is message {list(places)} of its schema, and {self._name} is {list(self._indexes)}")
        try:
            message = self._class.FromString(rest)
            if not message.IsInitialized():
                raise ValueError(f"required fields are missing: {', '.join(message.FindInitializationErrors())}")
            return self._convert(message)
        except (DecodeError, OverflowError, ValueError) as problem:
            raise Undecodable(f"it is not a {self._name}: {problem}") from None


def _indexes(content: bytes) -> tuple[tuple[int, ...], bytes]:
    """Which message of the schema it is, and the rest."""
    count, rest = _zigzag(content)
    if count == 0:
        return (0,), rest
    if not 0 < count <= MOST_INDEXES:
        raise Undecodable("the place of its message in the schema cannot be read")
    found = []
    for _ in range(count):
        number, rest = _zigzag(rest)
        found.append(number)
    return tuple(found), rest


def _zigzag(content: bytes) -> tuple[int, bytes]:
    value = 0
    for at, byte in enumerate(content[:10]):
        value |= (byte & 0x7F) << 7 * at
        if byte < 0x80:
            return value >> 1 ^ -(value & 1), content[at + 1 :]
    raise Undecodable("the place of its message in the schema cannot be read")


def no_form(pinned: Pinned, problem: Exception, who: str) -> ConfigurationError:
    """The refusal of a schema."""
    what = f"version {pinned.version} of the subject '{pinned.subject}' has no form in Spark: {problem}"
    return refused(what, who, "leave it undecoded, or register a schema without such a part")


def _counted(value: int | str) -> int | str:
    if isinstance(value, int) and value < 1:
        raise ValueError("versions count from 1")
    return value


Version = Annotated["int | Literal['latest']", AfterValidator(_counted)]
"""The version of a subject, by its number, or the one that is the latest when the query is defined."""


class RegisteredOptions(RegistryOptions):
    """Options of sources with columns that a registry has schemas of.

    Each column in `decoded` has four, named after it: `_format`, `_subject`, `_version` and `_message`.
    """

    decoded: ClassVar[tuple[str, ...]]

    request_timeout: Milliseconds = Field(default=30_000, gt=0)
    """Time limit for an answer of another system, ms."""

    @model_validator(mode="after")
    def _formats_together(self) -> RegisteredOptions:
        registered = [column for column in self.decoded if self.is_registered(column)]
        if registered and self.schema_registry_url is None:
            raise ValueError(f"{registered[0]}_format={self._of(registered[0], 'format')} needs schema_registry_url")
        formats = " or ".join(f"{column}_format" for column in self.decoded)
        for name in ("schema_registry_url", "schema_registry_options"):
            if not registered and getattr(self, name):
                raise ValueError(f"{name} needs {formats} to be avro or protobuf")
        for column in self.decoded:
            for part in ("subject", "version", "message"):
                name = f"{column}_{part}"
                given = getattr(self, name) != type(self).model_fields[name].default
                wanted = ("protobuf",) if part == "message" else ("avro", "protobuf")
                if given and self._of(column, "format") not in wanted:
                    raise ValueError(f"{name} needs {column}_format={' or '.join(wanted)}")
            if column in registered and self.subject(column) is None:
                raise ValueError(f"{column}_subject is needed: no other option says whose schema it is")
        return self

    def _of(self, column: str, part: str) -> Any:
        return getattr(self, f"{column}_{part}")

    def is_registered(self, column: str) -> bool:
        """Whether a column is decoded by a schema of the registry."""
        return self._of(column, "format") in ("avro", "protobuf")

    def subject(self, column: str) -> str | None:
        """The subject of a column's schema."""
        return cast("str | None", self._of(column, "subject"))

    def pin(self, column: str, who: str) -> Pinned:
        """Ask the registry for the schema of a column."""
        registry = Registry(self, self.request_timeout / 1000, who)
        version = self._of(column, "version")
        return pin(
            registry,
            self._of(column, "format"),
            self.subject(column) or "",
            None if version == "latest" else version,
            self._of(column, "message"),
        )

    def schemas(self, who: str) -> dict[str, str]:
        """The formats, and the schemas with their versions as they are now: another one has other columns."""
        found = dict[str, str]()
        for column in self.decoded:
            if self._of(column, "format") in ("bytes", None):
                continue
            found[f"{column}_format"] = self._of(column, "format")
            if self.is_registered(column):
                pinned = self.pin(column, who)
                found |= {f"{column}_subject": pinned.subject, f"{column}_version": pinned.known_as}
                found |= {f"{column}_message": pinned.message} if pinned.message else {}
        return found


class Formats:
    """The decoders of a source. Planner and tasks have those schemas that were pinned when Spark asked for columns."""

    def __init__(self, options: RegisteredOptions, who: str) -> None:
        self._options, self._who = options, who
        self._pinned: dict[str, Pinned] = {}
        self._decoders: dict[str, Decoder] = {}

    def __getstate__(self) -> dict[str, Any]:
        """With the schemas, and without what decodes by them."""
        return {**self.__dict__, "_decoders": {}}

    def decoder(self, column: str, declared: T.DataType | None = None) -> Decoder | None:
        """What decodes a column, JSON as the declared fields if there are some; None: nothing does."""
        form = getattr(self._options, f"{column}_format") if column in self._options.decoded else None
        if form in ("bytes", None):
            return None
        if form == "json":
            return JsonFields(declared) if isinstance(declared, T.StructType) and declared.fields else JsonText()
        if column not in self._decoders:
            self._decoders[column] = self._made(column, form)
        return self._decoders[column]

    def _made(self, column: str, form: str) -> Decoder:
        if column not in self._pinned:
            self._pinned[column] = self._options.pin(column, self._who)
        pinned = self._pinned[column]
        if form == "protobuf":
            return Protobuf(pinned, self._who)
        seconds = self._options.request_timeout / 1000
        return Avro(pinned, lambda: kept_registry(self._options, seconds, self._who), self._who)

    def check_versions(self) -> None:
        """Refuse a first start whose columns are not those of the version that the job has noted meanwhile."""
        for column, pinned in self._pinned.items():
            now = self._options.pin(column, self._who)
            if now.version != pinned.version:
                raise refused(
                    f"version {now.version} of the subject '{pinned.subject}' was registered while the query was being "
                    f"started with version {pinned.version}",
                    self._who,
                    f"start again, with {column}_version={now.version} or {column}_version={pinned.version}",
                )
            if now.digest != pinned.digest:
                raise refused(
                    f"version {now.version} of the subject '{pinned.subject}' became another schema while the query "
                    "was being started: the subject was deleted and registered again",
                    self._who,
                    "start again",
                )


def decoded(
    batch: pa.RecordBatch, decoders: Mapping[str, Decoder], names: Sequence[str], bad: Callable[[int, str, str], None]
) -> pa.RecordBatch:
    """A batch with decoded columns, without its bad rows: `bad` gets their numbers, columns and why."""
    arrays: dict[str, pa.Array] = {}
    why: dict[int, tuple[str, str]] = {}
    for column, decoder in decoders.items():

        def note(row: int, reason: str, column: str = column) -> None:
            why.setdefault(row, (column, reason))

        arrays[column] = decoder.column(batch.column(column).to_pylist(), note)
    for row in sorted(why):
        bad(row, *why[row])
    columns = [arrays[one] if one in arrays else batch.column(one) for one in names]
    found = pa.RecordBatch.from_arrays(columns, names=list(names))
    if not why:
        return found
    return found.filter(pa.array([row not in why for row in range(batch.num_rows)]))
