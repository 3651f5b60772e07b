"""Schemas of a registry: versions that are pinned, so that later reads have the same columns; and a writer's own."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any, Literal

from spark_ext.clients.proto_compiler import compiled
from spark_ext.clients.schema_registry import Incompatible, InvalidSchema, NoSuchSchema, Registry
from spark_ext.errors import ConfigurationError, refused


@dataclass(frozen=True)
class Pinned:
    """A version of a subject, by which all records are read; it needs nothing of the registry any more."""

    format: Literal["avro", "protobuf"]
    subject: str
    version: int
    id: int
    text: str  # Avro: the schema as JSON. Protobuf: a `FileDescriptorSet`, Base64.
    message: str = ""  # Protobuf: the message's full name
    digest: str = ""
    """Of what the registry has under that version: a subject that was deleted counts its versions from 1 again."""

    @property
    def known_as(self) -> str:
        """The version, and the schema that it is the number of."""
        return f"{self.version} (schema {self.digest})"


def pin(
    registry: Registry, format: Literal["avro", "protobuf"], subject: str, version: int | None, message: str | None
) -> Pinned:
    """Pin a version of a subject; None: the one that is the latest now."""
    who = registry.who
    try:
        found = registry.registered(subject, version)
        kind = (found.schema.schema_type or "AVRO").lower()
        if kind != format:
            what = f"version {found.version} of the subject '{subject}' is a schema of the format {kind}, not {format}"
            raise refused(what, who, "correct the format, the subject or the version")
        if format == "avro":
            try:
                text = json.dumps(plain(registry.avro(found.schema)))
            except RecursionError as problem:
                raise InvalidSchema("is nested too deeply") from problem
        else:
            text, message = compiled(registry, found.schema, message)
    except InvalidSchema as problem:
        raise refused(
            f"version {found.version} of the subject '{subject}' {problem}", who, "correct the schema in the registry"
        ) from problem
    except NoSuchSchema as missing:
        what = f"the schema registry {registry.url} does not have {missing}"
        raise refused(what, who, "register the schema, or correct the subject or version") from missing
    return Pinned(format, subject, found.version, found.schema_id, text, message or "", _digest(found.schema))


def _digest(schema: Any) -> str:
    """The same whatever release of a library parses the schema, and in whatever registry it is."""
    try:
        text = json.dumps(json.loads(schema.schema_str), sort_keys=True)
    except ValueError:
        text = str(schema.schema_str)  # Protobuf's own language
    referred = sorted((one.name, one.subject, one.version) for one in schema.references or ())
    return hashlib.blake2s(json.dumps([text, referred]).encode(), digest_size=8).hexdigest()


def plain(schema: Any) -> Any:
    """A parsed Avro schema without the marks of the parser."""
    if isinstance(schema, list):
        return [plain(one) for one in schema]
    if isinstance(schema, dict):
        return {key: plain(value) for key, value in schema.items() if not key.startswith("__")}
    return schema


class OwnSchema:
    """The Avro schema of a column, and the subject in which it is registered, or may be."""

    def __init__(self, registry: Registry, subject: str, schema: Any, *, register: bool) -> None:
        from confluent_kafka.schema_registry import Schema

        self._registry, self._subject, self._register = registry, subject, register
        self._text = json.dumps(schema)
        self._schema = Schema(self._text, "AVRO")

    def check(self) -> None:
        """Refuse a schema that cannot be registered, without registering it."""
        try:
            self._found()
        except NoSuchSchema as missing:
            if not self._register:
                raise self._not_there(missing) from missing
            self._compatible()

    def _found(self) -> Any:
        what = f"the schema of the rows in '{self._subject}'"
        return self._registry.ask(lambda client: client.lookup_schema(self._subject, self._schema), what)

    def _compatible(self) -> None:
        what = f"whether the schema of the rows is compatible with '{self._subject}'"
        try:
            good = self._registry.ask(
                lambda client: client.test_compatibility(self._subject, self._schema, "latest"), what
            )
        except NoSuchSchema:
            return  # a new subject
        except Incompatible as problem:
            raise self._incompatible(problem) from problem
        if not good:
            raise self._incompatible(None)

    def take(self) -> Pinned:
        """The schema with its id; registers it if it may be and is not."""
        try:
            if not self._register:
                return self._pinned(self._found().schema_id)
            what = f"to register the schema of the rows in '{self._subject}'"
            call = lambda client: client.register_schema(self._subject, self._schema)  # noqa: E731
            return self._pinned(self._registry.ask(call, what))
        except NoSuchSchema as missing:
            raise self._not_there(missing) from missing
        except Incompatible as problem:
            raise self._incompatible(problem) from problem

    def _pinned(self, id: int) -> Pinned:
        return Pinned("avro", self._subject, 0, id, self._text)

    def _incompatible(self, problem: Exception | None) -> ConfigurationError:
        return refused(
            f"the schema of the rows is not compatible with the subject '{self._subject}' of the schema registry "
            f"{self._registry.url}" + (f": {problem}" if problem else ""),
            self._registry.who,
            "select columns that are compatible with the latest version, write to another subject, or change the "
            f"compatibility of the subject; the schema is {self._text}",
        )

    def _not_there(self, missing: Exception) -> ConfigurationError:
        return refused(
            f"the subject '{self._subject}' of the schema registry {self._registry.url} does not have the schema of "
            f"the rows, and auto_register=false: {missing}",
            self._registry.who,
            f"register it, or name a version that rows can be written with; the schema is {self._text}",
        )
