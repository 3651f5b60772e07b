"""Versions of schemas that are pinned: what is read later needs nothing of the registry to have the same columns."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any, Literal

from spark_ext.clients.proto_compiler import compiled
from spark_ext.clients.schema_registry import InvalidSchema, NoSuchSchema, Registry
from spark_ext.errors import refused


@dataclass(frozen=True)
class Pinned:
    """A version of a subject, by which all records are read; it needs nothing of the registry any more."""

    format: Literal["avro", "protobuf"]
    subject: str
    version: int
    id: int
    text: str
    """Avro: the schema as JSON. Protobuf: a `FileDescriptorSet`, Base64."""
    message: str = ""
    """Protobuf: the message's full name."""
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
            raise refused(
                f"version {found.version} of the subject '{subject}' is a schema of the format {kind}, not {format}",
                who,
                "correct the format, the subject or the version",
            )
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
        raise refused(
            f"the schema registry {registry.url} does not have {missing}",
            who,
            "register the schema, or correct the subject or version",
        ) from missing
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
