"""Columns of CSV and JSON files as Arrow infers them from a sample, frozen in a file so that they stay the same.

With `schema_evolution=add_columns` a load adds to them what later files have, and changes nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as with_default
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from spark_ext.errors import ConfigurationError, StorageError, refused
from spark_ext.schemas.casts import replaced
from spark_ext.schemas.columns import spark_schema
from spark_ext.schemas.ddl import columns
from spark_ext.storage import folder_at

if TYPE_CHECKING:
    from pyspark.sql.types import StructField, StructType

VERSION: Final = 1
ADDED: Final = "schema."  # in the identity of a source, before a column that files may lack
SAMPLED_FILES: Final = 10  # the first ones
_ZERO_BEFORE_DIGIT: Final = r"^\s*[+-]?0[0-9]"
_DECLARE: Final = "declare the columns with .schema(...) instead of infer=true"


@dataclass(frozen=True)
class FrozenSchema:
    """The columns of a source's files."""

    place: str  # what the source reads, without credentials
    columns: StructType
    # Columns that files may lack, and the first file with each.
    optional: Mapping[str, str] = with_default(default_factory=dict)
    seen: int | None = None  # when the newest file was modified in which further columns were looked for, ns

    def identity(self) -> dict[str, str]:
        """The columns as a job compares them: what files may lack by itself, so that more of it can come."""
        needed = _ddl(one for one in self.columns if one.name not in self.optional)
        return {"schema": needed, **{ADDED + one: self.columns[one].dataType.simpleString() for one in self.optional}}

    @property
    def ddl(self) -> str:
        """The columns as DDL, as `.schema(...)` takes them."""
        return _ddl(self.columns)

    @classmethod
    def find(cls, location: str, operator: str) -> FrozenSchema | None:
        """What is frozen at a path or URI; None if nothing is there."""
        folder, name = _parts(location)
        try:
            content = folder_at(folder, make=False).find(name)
        except FileNotFoundError:
            content = None
        except OSError as problem:
            raise _unavailable(location, operator, problem) from problem
        return None if content is None else cls._parsed(content, location, operator)

    @classmethod
    def _parsed(cls, content: bytes, location: str, operator: str) -> FrozenSchema:
        try:
            found = json.loads(content)
            if found["version"] > VERSION:
                raise ValueError(f"it has the version {found['version']}, of a newer release")
            schema = columns("")
            for name, kind in found["columns"].items():
                schema = schema.add(name, columns(f"c {kind}")[0].dataType)
            if not schema.fields:
                raise ValueError("it has no columns")
            optional, seen = dict(found.get("optional", {})), found.get("seen")
            if (unknown := optional.keys() - {*schema.names}) or not isinstance(seen, int | None):
                raise ValueError(f"'optional' has the unknown columns {sorted(unknown)}, or 'seen' is no number")
            return cls(str(found["path"]), schema, optional, seen)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as problem:
            raise refused(
                f"'{location}' is no frozen schema: {problem or type(problem).__name__}",
                operator,
                "restore the file; or remove it, so that load() infers the columns again",
            ) from None

    def freeze(self, location: str, operator: str, *, instead: bool = False) -> FrozenSchema:
        """Write it `instead` of the former one; or unless another process was faster, whose columns then hold."""
        kept = {one.name: one.dataType.simpleString() for one in self.columns}
        found = {"version": VERSION, "path": self.place, "columns": kept, "optional": self.optional, "seen": self.seen}
        content = json.dumps(found, indent=2, ensure_ascii=False)
        if self._parsed(content.encode(), location, operator).columns != self.columns:
            raise refused(f"names of columns cannot be kept as DDL: {self.ddl}", operator, _DECLARE)
        folder, name = _parts(location)
        try:
            if instead:
                folder_at(folder).write(name, content, durable=True)
            if instead or folder_at(folder).create_once(name, content, durable=True):
                return self
        except OSError as problem:
            raise _unavailable(location, operator, problem) from problem
        return self.find(location, operator) or self


def _ddl(fields: Iterable[StructField]) -> str:
    return ", ".join(f"`{one.name}` {one.dataType.simpleString()}" for one in fields)


def _parts(location: str) -> tuple[str, str]:
    folder, _, name = location.rpartition("/")
    return folder or ("/" if location.startswith("/") else "."), name


def _unavailable(location: str, operator: str, problem: Exception) -> StorageError:
    return StorageError(
        f"the frozen schema '{location}' cannot be read or written: {problem}",
        operator=operator,
        kept="nothing was read or written",
        do="make the place of the option 'schema_location' available; it is tried again at the next load",
    )


def merged(
    samples: Sequence[tuple[str, pa.Schema]], operator: str, *, as_text: bool, beside: Collection[str] = ()
) -> StructType:
    """The columns that hold what was found in all samples, by the name of their file; they are `beside` others.

    With `as_text` a column of types that do not go together is text.
    """
    found, texts = pa.schema([]), set[str]()
    for name, sample in samples:
        for one in sample:
            try:
                found = pa.unify_schemas([found, pa.schema([one])], promote_options="permissive")
            except pa.ArrowTypeError:
                if not as_text:
                    raise _mixed(name, one, found, operator) from None
                texts.add(one.name)
    known = {name.lower(): name for name in beside}
    for name in found.names:
        if known.setdefault(name.lower(), name) != name:
            raise refused(f"columns '{known[name.lower()]}' and '{name}' differ in case only", operator, _DECLARE)
    fields = [pa.field(one.name, pa.string() if one.name in texts else replaced(one.type, _declared)) for one in found]
    try:
        return spark_schema(pa.schema(fields))
    except TypeError as problem:
        raise refused(str(problem), operator, _DECLARE) from None


def lacking(samples: Sequence[tuple[str, pa.Schema]]) -> dict[str, str]:
    """The columns that not all samples have, and the first file with each."""
    return {
        name: file
        for file, sample in reversed(samples)
        for name in sample.names
        if not all(name in other.names for _, other in samples)
    }


def _mixed(name: str, field: pa.Field, found: pa.Schema, operator: str) -> ConfigurationError:
    before = found.field(field.name).type
    what = f"column '{field.name}' has the type {field.type} in file '{name}', and {before} in others"
    return refused(what, operator, _DECLARE)


def zeros_kept(inferred: pa.Schema, texts: pa.Table) -> pa.Schema:
    """The inferred columns, as text where a number has a zero before its first digit, such as a postal code."""
    for index, field in enumerate(inferred):
        number = types.is_integer(field.type) or types.is_floating(field.type)
        if number and pc.any(pc.match_substring_regex(texts.column(index), _ZERO_BEFORE_DIGIT)).as_py():
            inferred = inferred.set(index, field.with_type(pa.string()))
    return inferred


def _declared(kind: pa.DataType) -> pa.DataType:
    """The type that is declared for one that Arrow infers."""
    if types.is_timestamp(kind):
        return pa.timestamp("us", "UTC")
    return pa.string() if types.is_null(kind) or types.is_time(kind) or types.is_binary(kind) else kind
