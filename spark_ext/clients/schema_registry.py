"""Schema registries with the REST interface of Confluent's: options, a client, and its errors.

The library is the client in confluent-kafka. It is loaded with the first use.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, TypeVar

from pydantic import BaseModel, BeforeValidator, Field, field_validator

from spark_ext.clients.library import filled, load
from spark_ext.errors import SparkExtError, StorageError, refused
from spark_ext.options import json_object

T = TypeVar("T")
HEADER_BYTES: Final = 5  # a zero and the id of the schema precede what is encoded
_OWN: Final = frozenset({"url", "timeout", "max.retries", "retries.wait.ms", "retries.max.wait.ms", "cache.capacity"})


def _settings(value: object) -> object:
    found = json_object(value)
    if isinstance(found, Mapping):
        for name in sorted(_OWN & found.keys()):
            raise ValueError(f"'{name}' is set by the connector")
    return found


class RegistryOptions(BaseModel):
    """Options of all connectors that use a schema registry."""

    schema_registry_url: str | None = None
    """Address of a schema registry: `http://` or `https://`; several of one registry, comma-separated."""
    schema_registry_options: Annotated[Mapping[str, str], BeforeValidator(_settings)] = Field(
        default_factory=dict, repr=False
    )
    """Settings with the names of Confluent's client, as a JSON object, such as `basic.auth.user.info` and
    `ssl.ca.location`. `${NAME}` in a value is replaced by an environment variable of the process that connects. Never
    shown or stored."""

    @field_validator("schema_registry_url")
    @classmethod
    def _address(cls, value: str | None) -> str | None:
        for part in (value or "").split(",") if value is not None else ():
            if not re.fullmatch(r"https?://[^\s@/?#]+(/[^\s@?#]*)?", part.strip()):
                raise ValueError(
                    "this is not an address such as https://registry:8081; credentials belong into "
                    "'schema_registry_options'"
                )
        return value


class NoSuchSchema(Exception):
    """The registry has no such subject, version or id."""


class InvalidSchema(Exception):
    """A schema that the registry has is none; the text says why, as the rest of a sentence about it."""


class Incompatible(Exception):
    """The registry refuses a schema: it is not compatible with its subject, or is none that it accepts."""


class Registry:
    """A client of a registry."""

    def __init__(self, options: RegistryOptions, seconds: float, who: str) -> None:
        self.url, self.who = options.schema_registry_url or "", who
        # Of a library of the library, about itself; it insists that they are shown.
        with warnings.catch_warnings(record=True):
            kind = load("confluent_kafka.schema_registry", "schemas", who).SchemaRegistryClient
        try:
            self.client = kind(
                {
                    **{
                        n: filled(v, "schema_registry_options", who) for n, v in options.schema_registry_options.items()
                    },
                    "url": self.url,
                    "timeout": seconds,
                    # A failed epoch is tried again by the job.
                    "max.retries": 1,
                    "retries.wait.ms": 100,
                    "retries.max.wait.ms": 100,
                }
            )
        except (ValueError, TypeError, OSError) as problem:
            do = "correct the option 'schema_registry_options'; its names are those of Confluent's client"
            raise refused(f"the settings of the schema registry are refused: {problem}", who, do) from problem

    def ask(self, call: Callable[[Any], T], what: str) -> T:
        """Ask the registry."""
        import httpx
        from confluent_kafka.schema_registry.error import OAuthTokenError, SchemaRegistryError

        try:
            return call(self.client)
        except SchemaRegistryError as problem:
            raise self._error(problem, what) from problem
        except OAuthTokenError as problem:
            raise self._refused(f"{what}: no token: {problem}") from problem
        except (httpx.HTTPError, OSError) as problem:
            raise self._unreached(f"{what}: {type(problem).__name__}: {problem}") from problem
        except (json.JSONDecodeError, TypeError, KeyError, AttributeError) as problem:
            raise self._refused(f"{what}: its answer is not that of a schema registry: {problem}") from problem

    def _error(self, problem: Any, what: str) -> Exception:
        status = problem.http_status_code
        if status == 404 and problem.error_code in (40401, 40402, 40403):
            return NoSuchSchema(f"{what}: {problem.error_message}")
        if status == 409 or (status == 422 and problem.error_code == 42201):
            return Incompatible(str(problem.error_message))
        if status in (408, 429) or status >= 500:
            return self._unreached(f"{what}: {problem}")
        return self._refused(f"{what}: {problem}")

    def _refused(self, what: str) -> SparkExtError:
        do = "check 'schema_registry_url' and the credentials in 'schema_registry_options'"
        return refused(f"the schema registry {self.url} refuses {what}", self.who, do)

    def _unreached(self, what: str) -> SparkExtError:
        return StorageError(
            f"the schema registry {self.url} did not answer, {what}",
            operator=self.who,
            kept="everything that was committed",
            do="check 'schema_registry_url' and the network; the operation will be retried with back-off",
        )

    def schema(self, id: int) -> Any:
        """A schema by its id, kept once it is known: an id never gets another schema."""
        return self.ask(lambda client: client.get_schema(id), f"the schema {id}")

    def registered(self, subject: str, version: int | None) -> Any:
        """A version of a subject; None: the latest."""
        if version is None:
            return self.ask(lambda client: client.get_latest_version(subject), f"the latest version of '{subject}'")
        return self.ask(lambda client: client.get_version(subject, version), f"version {version} of '{subject}'")

    def avro(self, schema: Any) -> Any:
        """An Avro schema with all that it refers to, parsed."""
        load("fastavro", "schemas", self.who)
        from fastavro.repository.base import AbstractSchemaRepository, SchemaRepositoryError
        from fastavro.schema import load_schema

        texts = {"": schema.schema_str}
        self._add_references(schema, texts, ())

        class Referred(AbstractSchemaRepository):
            def load(self, name: str) -> Any:
                if name not in texts:
                    raise SchemaRepositoryError(f"unknown type {name}")
                return json.loads(texts[name])

        try:
            return load_schema("", repo=Referred())
        except Exception as problem:  # The library raises what its own reading of a schema happens to run into.
            raise InvalidSchema(f"cannot be parsed: {type(problem).__name__}: {problem}") from problem

    def _add_references(self, schema: Any, texts: dict[str, str], within: tuple[str, ...]) -> None:
        """Add the texts of all schemas that a schema refers to, by their names."""
        for one in schema.references or ():
            if one.name in within:
                raise InvalidSchema("refers to itself")
            if one.name not in texts:
                what = f"version {one.version} of '{one.subject}', to which another schema refers"
                call = lambda client, one=one: client.get_version(one.subject, one.version, deleted=True)  # noqa: E731
                found = self.ask(call, what).schema
                texts[one.name] = found.schema_str
                self._add_references(found, texts, (*within, one.name))


_kept: dict[tuple[str, str, float], Registry] = {}  # of this process: schemas are looked up once


def kept_registry(options: RegistryOptions, seconds: float, who: str) -> Registry:
    """The client that this process keeps for reading schemas by their ids."""
    key = (options.schema_registry_url or "", repr(sorted(options.schema_registry_options.items())), seconds)
    if key not in _kept:
        _kept[key] = Registry(options, seconds, who)
    return _kept[key]
