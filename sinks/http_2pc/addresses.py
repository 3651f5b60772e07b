"""Where the request of a row goes: one address for all, a template with columns, or a column. Pure.

An address that depends on a row is data, and credentials are sent with it. So only the host of the option `url`, and
those that the user names, are ever sent to. The address is part of what the outbox records.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import SplitResult, quote, urlsplit

import pyarrow as pa
from pyspark.sql import types as spark

from spark_ext.errors import ConfigurationError, DataError, refused
from spark_ext.options import is_secret_parameter

Host = tuple[str, int]  # Name in lower case, and port
MOST_CHARACTERS: Final = 8_000  # Length of an address above which most receivers refuse a request
_PLACE: Final = re.compile(r"\{([^{}]*)\}")
_PORTS: Final = {"http": 80, "https": 443}
_TEXTS: Final = (spark.StringType, spark.CharType, spark.VarcharType)
# Types with one form as text. A number with a fraction has several, and a time too.
_IN_TEMPLATE: Final = (
    *_TEXTS,
    spark.ByteType,
    spark.ShortType,
    spark.IntegerType,
    spark.LongType,
    spark.BooleanType,
    spark.DateType,
)


def checked(value: str) -> SplitResult:
    """Check an address to which requests are sent."""
    if not value.isprintable() or " " in value:
        raise ValueError("an address has no blanks and no control characters; encode them, as in %20")
    try:
        parts = urlsplit(value)
        fits = parts.scheme in _PORTS and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fits = False
    if not fits:
        raise ValueError("this is not an address such as https://host/path")
    if parts.username is not None or parts.password is not None:
        raise ValueError("credentials do not belong in an address; use 'token' or 'headers'")
    if parts.fragment:
        raise ValueError("an address of requests has no fragment ('#')")
    return parts


def columns_of(template: str) -> tuple[str, ...]:
    """The columns that an address names, as in `https://host/items/{id}`; none: it is the same for all rows."""
    names = tuple(_PLACE.findall(template))
    if "{" in (rest := _PLACE.sub("", template)) or "}" in rest:
        raise ValueError("a brace has no other half; for a brace itself write %7B or %7D")
    if not names:
        return ()
    if not all(name.strip() for name in names):
        raise ValueError("two braces without a column's name between them")
    parts = urlsplit(template)
    if "{" in parts.netloc:
        raise ValueError("the host cannot come from a column; use 'url_column' with 'allowed_hosts'")
    parameters = (one.partition("=") for one in parts.query.split("&"))
    secret = [name for name, _, value in parameters if is_secret_parameter(name) and value]
    if secret:
        raise ValueError(
            f"the parameter '{secret[0]}' is a secret, and an address with columns is recorded in the outbox; use "
            "'headers' for it"
        )
    return names


def host_of(parts: SplitResult) -> Host:
    """Host and port of an address."""
    return (parts.hostname or "").lower(), parts.port or _PORTS[parts.scheme]


def hosts(names: Iterable[str], scheme: str) -> frozenset[Host]:
    """Hosts that a user allows: `host`, with the port of the scheme, or `host:port`."""
    return frozenset(_host(name, scheme) for name in names)


def _host(name: str, scheme: str) -> Host:
    try:
        parts = urlsplit(f"{scheme}://{name}")
        plain = parts.netloc == name and bool(parts.hostname) and "@" not in name and parts.port != 0
    except ValueError:
        plain = False
    if not plain or "*" in name or not name.isprintable() or " " in name:
        raise ValueError(f"{name!r} is not a host such as 'api.example.com' or 'api.example.com:8443'")
    return host_of(parts)


@dataclass(frozen=True)
class Allowed:
    """To where requests may go."""

    home: SplitResult
    others: frozenset[Host] = frozenset()

    def check(self, address: str) -> None:
        """Check an address that came from a row."""
        parts = checked(address)
        if len(address) > MOST_CHARACTERS:
            raise ValueError(f"the address has {len(address)} characters, more than {MOST_CHARACTERS}")
        if parts.scheme != self.home.scheme and parts.scheme != "https":
            raise ValueError(f"the address is {parts.scheme}, and the option 'url' is {self.home.scheme}")
        host = host_of(parts)
        if host != host_of(self.home) and host not in self.others:
            raise ValueError(f"the host '{host[0]}:{host[1]}' is neither that of the option 'url' nor an allowed one")


class Addresses:
    """The address of each row of a query."""

    def __init__(self, template: str, column: str | None, allowed: Allowed, who: str) -> None:
        self._template, self.column, self._allowed, self._who = template, column, allowed, who
        self._names = columns_of(template)

    @property
    def vary(self) -> bool:
        """Whether they depend on the row."""
        return self.column is not None or bool(self._names)

    def check(self, schema: spark.StructType) -> None:
        """Refuse columns that are missing, or have no one form in an address."""
        if self.column is not None:
            self._check(schema, self.column, "url_column", _TEXTS, "a string")
            if len(schema.fields) == 1:
                raise self._refusal(f"'{self.column}' is the only column, so that nothing is left to be sent")
        for name in self._names:
            self._check(schema, name, "url", _IN_TEMPLATE, "a string, whole number, boolean or date")

    def _check(
        self, schema: spark.StructType, name: str, option: str, kinds: tuple[type[spark.DataType], ...], wanted: str
    ) -> None:
        if name not in schema.names:
            there = ", ".join(schema.names)
            raise self._refusal(
                f"the option '{option}' names the column '{name}', which does not exist; there are: {there}"
            )
        kind = schema[name].dataType
        if not isinstance(kind, kinds):
            raise self._refusal(
                f"the column '{name}' of the option '{option}' has the type {kind.simpleString()}; it must be {wanted}"
            )

    def _refusal(self, what: str) -> ConfigurationError:
        return refused(what, self._who, "correct the option, or select or cast the column in the query")

    def body(self, schema: spark.StructType) -> spark.StructType:
        """The columns that are sent: all but the one that has the address."""
        return spark.StructType([field for field in schema.fields if field.name != self.column])

    def of(self, batch: pa.RecordBatch) -> list[str]:
        """The address of each row."""
        if self.column is not None:
            found = batch.column(batch.schema.get_field_index(self.column)).to_pylist()
            known: dict[str, str] = {}
            return [known.get(one) or known.setdefault(one, self._given(one)) for one in found]
        values = [batch.column(batch.schema.get_field_index(name)).to_pylist() for name in self._names]
        return [self._filled(dict(zip(self._names, row, strict=True))) for row in zip(*values, strict=True)]

    def _given(self, address: Any) -> str:
        if address is None:
            raise self._bad(f"the column '{self.column}' is null in a row, which thus has no address")
        try:
            self._allowed.check(address)
        except ValueError as problem:
            raise self._bad(f"the column '{self.column}' of a row has no address to send it to: {problem}") from None
        return str(address)

    def _filled(self, row: Mapping[str, Any]) -> str:
        def text(match: re.Match[str]) -> str:
            value = row[match[1]]
            said = None if value is None else _text(value)
            # A receiver may take a dot for the folder itself, encoded or not.
            if said in (None, "", ".", ".."):
                how = "null" if said is None else f"'{said}'"
                raise self._bad(f"the column '{match[1]}' of a row is {how}, which cannot be a part of an address")
            assert said is not None
            return quote(said, safe="")

        address = _PLACE.sub(text, self._template)
        if len(address) > MOST_CHARACTERS:
            raise self._bad(f"the address of a row has {len(address)} characters, more than {MOST_CHARACTERS}")
        return address

    def _bad(self, what: str) -> DataError:
        return DataError(
            what,
            operator=self._who,
            kept="nothing of this epoch was sent",
            do="filter or correct such rows in the query; name further hosts in 'allowed_hosts'",
        )


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.isoformat() if isinstance(value, datetime.date) else str(value)
