"""What an exchange is: its name, its partitions and the schema of its rows, written once. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from pyspark.sql.types import StructType, TimestampType

from spark_ext.errors import RESET, ConfigurationError, StateError
from spark_ext.exchange.entries import not_of_this_release
from spark_ext.model.end_of_input import DELAY, PRODUCERS_DELAY

VERSION: Final = 1
_FIXED: Final = ("name", "kind", "partitions", "key")
"""What rows that are there already depend on; the name is part of the identity of the epochs that wrote them."""


@dataclass(frozen=True)
class Shape:
    """How rows are distributed."""

    partitions: int
    key: tuple[str, ...]

    def __str__(self) -> str:
        key = f"key {', '.join(self.key)}" if self.key else "no key"
        return f"{self.partitions} partitions, {key}"


@dataclass(frozen=True)
class Descriptor:
    """An exchange, as its folder describes it."""

    name: str
    id: str  # drawn when the exchange is made: positions in one that was deleted mean nothing in the next of its name
    job_id: str  # the job that owns it; "" outside any
    kind: str  # how it is stored: the name of an `ExchangeKind`
    partitions: int  # Fixed while the job runs; readers may be fewer or more
    key: tuple[str, ...]  # columns by which rows are distributed; empty: in turn
    columns: Mapping[str, Any]  # the schema of the rows in Spark's JSON form, all nullable
    max_in_flight: int | str | None = None
    """Rows, or a size as text, beyond which the producer waits for its consumers; None: it never waits. May be changed
    while the exchange is in use."""
    keep: int = 0  # time for which rows are kept at least, ms; may be changed while the exchange is in use
    options: Mapping[str, str] = field(default_factory=dict)  # of its kind; without secrets; may be changed

    @property
    def schema(self) -> StructType:
        """The rows' schema."""
        return StructType.fromJson(dict(self.columns))

    @property
    def shape(self) -> Shape:
        """Its partitions and key."""
        return Shape(self.partitions, self.key)

    @property
    def who(self) -> str:
        """The exchange, for messages."""
        return f"exchange '{self.name}'"

    def to_json(self) -> str:
        """The form that is stored."""
        out = {"version": VERSION, **asdict(self)}
        if not self.options:
            del out["options"]
        return json.dumps(out)

    @classmethod
    def from_json(cls, text: str, who: str) -> Descriptor:
        """Read a stored form."""
        try:
            raw = json.loads(text)
            version = raw.pop("version")
        except (ValueError, AttributeError, KeyError, TypeError):
            raise _not_ours(who, "its description cannot be read") from None
        if version != VERSION:
            what, kept = f"its description has version {version!r}", "the exchange is unchanged; nothing was started"
            raise not_of_this_release(what, VERSION, who, kept)
        try:
            return cls(**{**raw, "key": tuple(raw["key"])})
        except (TypeError, KeyError):
            raise _not_ours(who, "its description has other fields") from None

    def merged(self, wanted: Descriptor) -> Descriptor:
        """This description with what may change taken from another one."""
        if self.job_id != wanted.job_id:
            do = "give the exchange another name, or use the state directory of the job that made it"
            kept = "the exchange is unchanged; nothing was started"
            raise ConfigurationError("the exchange belongs to another job", operator=self.who, kept=kept, do=do)
        for name in _FIXED:
            there, asked = getattr(self, name), getattr(wanted, name)
            if there != asked:
                raise self._differs(name, _shown(there), _shown(asked))
        there, asked = _types(self.schema), _types(wanted.schema)
        for column in {**there, **asked}:
            if there.get(column) != asked.get(column):
                missing = "missing"
                raise self._differs(f"column '{column}'", there.get(column, missing), asked.get(column, missing))
        if list(there) != list(asked):
            raise self._differs("the order of the columns", ", ".join(there), ", ".join(asked))
        changed = {name: getattr(wanted, name) for name in ("columns", "max_in_flight", "keep", "options")}
        return replace(self, **changed)

    def _differs(self, what: str, there: str, asked: str) -> ConfigurationError:
        do = (
            "put it back as it was, or use an exchange of another name; to start from scratch, reset the query "
            f"that writes it and those that read it, with {RESET}, and delete the exchange's folder"
        )
        if what in ("partitions", "key"):
            do = f"put it back as it was; to change it, call job.rescale('exchange:{self.name}', ...) before the start"
        return ConfigurationError(
            f"{what} of the exchange is {there}, but the job now specifies {asked}; the stored rows depend on it",
            operator=self.who,
            kept="the exchange is unchanged; nothing was started",
            do=do,
        )


def nullable(schema: StructType) -> StructType:
    """A schema without what does not hold for rows that were stored.

    That is constraints on nulls, which Spark derives differently from one release to the next, and the mark of a
    watermark, which Spark would take for one of its own: of a timestamp it is kept under another name.
    """
    kept = event_times(schema, DELAY)
    columns: dict[str, Any] = _nullable(schema.jsonValue())
    for column in columns["fields"]:
        if column["name"] in kept:
            column["metadata"] = {**column["metadata"], PRODUCERS_DELAY: kept[column["name"]]}
    return StructType.fromJson(columns)


def event_times(schema: StructType, mark: str = PRODUCERS_DELAY) -> dict[str, int]:
    """The columns that the watermark of the query that writes them is about, with its delay, ms."""
    times = (field for field in schema.fields if isinstance(field.dataType, TimestampType))
    return {field.name: int(field.metadata[mark]) for field in times if mark in (field.metadata or {})}


def _nullable(raw: Any) -> Any:
    if isinstance(raw, dict):
        out = {name: _nullable(value) for name, value in raw.items() if name not in (DELAY, PRODUCERS_DELAY)}
        for flag in ("nullable", "containsNull", "valueContainsNull"):
            if flag in out:
                out[flag] = True
        return out
    return [_nullable(item) for item in raw] if isinstance(raw, list) else raw


def _types(schema: StructType) -> dict[str, str]:
    return {field.name: field.dataType.simpleString() for field in schema.fields}


def _shown(value: object) -> str:
    return (", ".join(map(str, value)) or "none") if isinstance(value, tuple) else str(value)


def _not_ours(who: str, what: str) -> StateError:
    return StateError(
        f"this is not an exchange of this package, or it is damaged: {what}",
        operator=who,
        kept="nothing was changed; nothing was started",
        do="check the path; restore the exchange's folder from a backup, or use another name",
    )
