"""Protobuf schemas of a registry, which are text, as descriptors: compiled by protoc, once, when they are pinned."""

from __future__ import annotations

import base64
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_ext.clients.library import load
from spark_ext.errors import refused

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor

    from spark_ext.clients.schema_registry import Registry

_MAIN = "schema_of_the_subject.proto"


def compiled(registry: Registry, schema: Any, message: str | None) -> tuple[str, str]:
    """A schema with all that it refers to, as a `FileDescriptorSet` in Base64, and its (first) message's full name."""
    who = registry.who
    protoc = load("grpc_tools.protoc", "schemas", who)
    own = Path(load("grpc_tools", "schemas", who).__file__).parent / "_proto"
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / _MAIN).write_text(schema.schema_str)
        _write_references(registry, schema, place, set())
        # It writes what is wrong to the descriptor of standard error, which is not ours to redirect.
        out = place / "set"
        status = protoc.main(
            ["protoc", f"-I{place}", f"-I{own}", "--include_imports", f"--descriptor_set_out={out}", _MAIN]
        )
        if status:
            what = "the Protobuf schema does not compile; protoc has written why to standard error"
            raise refused(what, who, "correct the schema in the registry, or choose another version")
        text = base64.b64encode(out.read_bytes()).decode()
    found = descriptor(text, message or "")
    if found is None:
        what = f"the schema has no message '{message}'" if message else "the schema has no message"
        raise refused(what, who, "correct the name of the message: package and name, such as 'shop.Order'")
    return text, found.full_name


def _write_references(registry: Registry, schema: Any, place: Path, known: set[str]) -> None:
    for one in schema.references or ():
        if one.name in known:
            continue
        known.add(one.name)
        target = (place / one.name).resolve()
        if place.resolve() not in target.parents:
            what = f"the schema refers to '{one.name}', which is not the name of a file below its own folder"
            raise refused(what, registry.who, "correct the references in the registry")
        found = registry.registered(one.subject, one.version).schema
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(found.schema_str)
        _write_references(registry, found, place, known)


def descriptor(text: str, message: str) -> Descriptor | None:
    """The descriptor of a message; without a name that of the first one. None if it does not exist."""
    from google.protobuf import descriptor_pb2, descriptor_pool

    files = descriptor_pb2.FileDescriptorSet.FromString(base64.b64decode(text))
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    if message:
        try:
            return pool.FindMessageTypeByName(message)
        except KeyError:
            return None
    own = pool.FindFileByName(files.file[-1].name)
    return next(iter(own.message_types_by_name.values()), None)
