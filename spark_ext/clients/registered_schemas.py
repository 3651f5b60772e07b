"""Schemas that a writer has in a registry: found by their content, registered, or an existing version by its number."""

from __future__ import annotations

import json
from typing import Any

from spark_ext.clients.pinned_schemas import Pinned, pin
from spark_ext.clients.schema_registry import Incompatible, NoSuchSchema, Registry
from spark_ext.errors import ConfigurationError, refused


class OwnSchema:
    """The Avro schema of a column, and the subject in which it is registered.

    Args:
        register: whether it may be registered.
    """

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


def existing(registry: Registry, subject: str, version: int) -> Pinned:
    """A version of a subject."""
    return pin(registry, "avro", subject, version, None)
