"""Versions of schemas that are pinned: what is read later needs nothing of the registry to have the same columns."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

from spark_ext.clients.proto_compiler import compiled
from spark_ext.clients.schema_registry import NoSuchSchema, Registry
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


def pin(
    registry: Registry, format: Literal["avro", "protobuf"], subject: str, version: int | None, message: str | None
) -> Pinned:
    """Pin a version of a subject; None: the one that is the latest now.

    Raises:
        ConfigurationError: there is no such version, or it is of another format.
        StorageError: no answer.
    """
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
            text = json.dumps(plain(registry.avro(found.schema)))
        else:
            text, message = compiled(registry, found.schema, message)
    except NoSuchSchema as missing:
        raise refused(
            f"the schema registry {registry.url} does not have {missing}",
            who,
            "register the schema, or correct the subject or version",
        ) from missing
    return Pinned(format, subject, found.version, found.schema_id, text, message or "")


def plain(schema: Any) -> Any:
    """A parsed Avro schema without the marks of the parser."""
    if isinstance(schema, list):
        return [plain(one) for one in schema]
    if isinstance(schema, dict):
        return {key: plain(value) for key, value in schema.items() if not key.startswith("__")}
    return schema
