"""One version of a Delta table, read by delta-rs: columns, data files, deletion vectors; and what is refused."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from pyspark.sql.types import StructType

from spark_ext.datafiles.input_file import KEPT, resolve
from spark_ext.datafiles.uri import shown, without_secrets
from spark_ext.delta.row_rules import RowRules
from spark_ext.errors import (
    NEW_QUERY,
    NOTHING_DONE,
    DataError,
    SparkExtError,
    StorageError,
    UnsupportedTableError,
    refused,
)
from spark_ext.options import instant
from spark_ext.sources.delta_snapshot.commits import Metadata, local
from spark_ext.sources.delta_snapshot.time import commits_of, current_at

if TYPE_CHECKING:
    import pandas as pd


READABLE = frozenset(  # table features
    {
        "columnMapping",
        "deletionVectors",
        "timestampNtz",
        "typeWidening",
        "typeWidening-preview",
        "v2Checkpoint",
        "vacuumProtocolCheck",
    }
)


@dataclass(frozen=True, slots=True)
class DataFile:
    """A data file of a table's version."""

    path: str  # relative to the table, or absolute, as in a shallow clone
    size: int
    partition: dict[str, str | None]  # values as text, by the logical name of the partition column
    rows_deleted: bool  # by a deletion vector
    rows: int | None = None  # with those that a deletion vector removes; None: the table's log does not say


class TableVersion:
    """A loaded version: a number, that of a timestamp, or the current one; errors of delta-rs are converted.

    A pinned version was chosen by an earlier run. A table that is followed has been read before, so that a storage that
    fails is tried again.
    """

    def __init__(
        self,
        path: str,
        version: int | None,
        timestamp: str | None,
        operator: str,
        *,
        pinned: bool = False,
        followed: bool = False,
    ) -> None:
        self.path, self._operator = path, operator
        try:
            self.handle = DeltaTable(path, version=version)
            if version is None and timestamp is not None:
                self.handle.load_as_version(self._version_at(instant(timestamp)))
        except TableNotFoundError as problem:
            if version is not None and DeltaTable.is_deltatable(path):
                raise self._unreadable(version, pinned, problem) from None
            raise refused(f"'{shown(path)}' is not a Delta table", operator, "correct the option 'path'") from None
        except ValueError as problem:
            raise refused(
                f"'{timestamp}' is not a timestamp: {problem}", operator, "write it like 2024-01-31T00:00:00Z"
            ) from problem
        except DeltaError as problem:
            raise self._unreadable(version, pinned, problem) from None
        except OSError as problem:
            if not followed:
                raise
            raise StorageError(
                f"the Delta table '{shown(path)}' could not be opened: {without_secrets(str(problem), path)}",
                operator=operator,
                kept=KEPT,
                do="check that the storage is reachable; it will be retried",
            ) from None
        self._check_features()

    def _unreadable(self, version: int | None, pinned: bool, problem: Exception) -> SparkExtError:
        text = without_secrets(str(problem), self.path)
        if pinned:
            return DataError(
                f"version {version} of '{shown(self.path)}', which this source reads, can no longer be loaded: {text}",
                operator=self._operator,
                kept=KEPT,
                do=f"restore the table's log, or read the current version {NEW_QUERY}; "
                "set delta.logRetentionDuration longer than a run may take",
            )
        which = f"version {version} of " if version is not None else ""
        return refused(
            f"{which}the Delta table '{shown(self.path)}' cannot be loaded: {text}",
            self._operator,
            "use a version that is still in the table's log, and check that the storage is reachable",
        )

    def _version_at(self, wanted: pd.Timestamp) -> int:
        filesystem, root = resolve(self.path, self._operator)
        at = int(wanted.as_unit("ms").asm8.view("i8"))
        commits = commits_of(self.handle, filesystem, root, at)
        if found := current_at(commits, at):
            return found.version
        oldest = ""
        if commits:
            time = datetime.fromtimestamp(commits[0].at / 1000, timezone.utc).replace(tzinfo=None)
            oldest = f"; the oldest is version {commits[0].version} of {time}Z"
        raise refused(
            f"the table's log has no commit at or before {wanted}{oldest}",
            self._operator,
            "use a later timestamp, or a version",
        )

    def _check_features(self) -> None:
        protocol = self.handle.protocol()
        unknown = sorted(set(protocol.reader_features or ()) - READABLE)
        if self.metadata.mapping == "id":
            unknown.append("columnMapping by id")
        if unknown or protocol.min_reader_version > 3:
            raise UnsupportedTableError(
                f"table '{shown(self.path)}' needs {', '.join(unknown) or 'a newer reader'}, which this source does "
                "not support",
                operator=self._operator,
                kept=NOTHING_DONE,
                do="read it with Spark's own Delta source, or drop the feature from the table",
            )

    @cached_property
    def metadata(self) -> Metadata:
        """What its log says of the table."""
        found = self.handle.metadata()
        return Metadata(str(found.id), self._fields, dict(found.configuration))

    @property
    def version(self) -> int:
        """Its number."""
        return int(self.handle.version())

    @property
    def partitioned(self) -> bool:
        """Whether its files have partition values."""
        return bool(self.handle.metadata().partition_columns)

    @property
    def mapped(self) -> bool:
        """Whether its files have other column names."""
        return self.metadata.mapping == "name"

    @cached_property
    def _fields(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.handle.schema().to_json())
        return found

    @property
    def schema(self) -> StructType:
        """Its columns, without their metadata, which has no meaning outside of the table."""
        return struct_of(self._fields)

    @property
    def physical(self) -> StructType:
        """Its columns with the names in the data files; the same fields at the same positions."""
        return StructType.fromJson(_plain(self._fields, physical=self.mapped))

    @cached_property
    def widths(self) -> dict[str, int]:
        """The columns that Spark declares as `char(n)`, with n: Spark pads their texts on reading."""
        lengths = RowRules.of(StructType.fromJson(self._fields)).lengths
        return {name: length for name, (kind, length) in lengths.items() if kind == "char"}

    def files(self) -> Iterator[DataFile]:
        """Its data files, oldest first."""
        actions = pa.table(self.handle.get_add_actions()).sort_by(
            [("modification_time", "ascending"), ("path", "ascending")]
        )
        deleted = self._paths_with_deleted_rows()
        columns: dict[str, list[str | None]] = {}
        if "partition" in actions.schema.names:
            values = actions["partition"].combine_chunks()
            columns = {field.name: values.field(field.name).cast(pa.string()).to_pylist() for field in values.type}
        sizes = actions["size_bytes"].to_pylist()
        known = "num_records" in actions.schema.names
        rows = actions["num_records"].to_pylist() if known else [None] * len(sizes)
        for index, encoded in enumerate(actions["path"].to_pylist()):
            try:
                path = local(unquote(encoded))
            except ValueError as problem:
                raise DataError(
                    f"the log of '{shown(self.path)}' is damaged at version {self.version}: {problem}",
                    operator=self._operator,
                    kept=KEPT,
                    do="restore the table's log from a backup; find out who has written that commit",
                ) from None
            yield DataFile(
                path,
                sizes[index],
                {name: texts[index] for name, texts in columns.items()},
                any(_is_end(name, path) for name in deleted),
                rows[index],
            )

    def _paths_with_deleted_rows(self) -> frozenset[str]:
        if "deletionVectors" not in (self.handle.protocol().reader_features or ()):
            return frozenset()
        with _vectors_of(self.path, self.version, self._operator):
            return frozenset(
                unquote(path)
                for batch in self.handle.deletion_vectors()
                for path in pa.record_batch(batch)["filepath"].to_pylist()
            )


def struct_of(fields: Mapping[str, Any]) -> StructType:
    """A schema as it is in a log, without metadata."""
    return StructType.fromJson(_plain(fields, physical=False))


def physical_names(fields: Mapping[str, Any]) -> dict[tuple[str, ...], str]:
    """The names in data files of all fields of a schema as it is in a log, nested ones included, by where they are."""
    return dict(_names_in(fields, ()))


def _names_in(node: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    if isinstance(node, list):
        for item in node:
            yield from _names_in(item, path)
    elif isinstance(node, dict):
        if "name" in node:
            path = (*path, node["name"])
            yield path, _physical(node)
        for key in ("fields", "type", "elementType"):
            yield from _names_in(node.get(key), path)
        for key in ("keyType", "valueType"):
            yield from _names_in(node.get(key), (*path, key))


def _physical(field: Mapping[str, Any]) -> str:
    name: str = field.get("metadata", {}).get("delta.columnMapping.physicalName") or field["name"]
    return name


def _plain(node: Any, *, physical: bool) -> Any:
    """A schema's JSON without metadata, optionally with physical names."""
    if isinstance(node, list):
        return [_plain(item, physical=physical) for item in node]
    if not isinstance(node, dict):
        return node
    out = {key: _plain(value, physical=physical) for key, value in node.items() if key != "metadata"}
    if "name" in node:
        out |= {"name": _physical(node) if physical else node["name"], "metadata": {}}
    return out


@lru_cache(maxsize=2)
def version_of(path: str, version: int) -> TableVersion:
    """A version that a planner has chosen; cached per process."""
    return TableVersion(path, version, None, f"table '{path}'", pinned=True)


@lru_cache(maxsize=2)
def keep_masks(path: str, version: int) -> dict[str, pa.Array]:
    """For each row whether it exists, by the decoded URI of a data file with a deletion vector."""
    # Cached per process, because delta-rs returns those of all files at once.
    masks = {}
    with _vectors_of(path, version, f"table '{shown(path)}'"):
        for given in DeltaTable(path, version=version).deletion_vectors():
            batch = pa.record_batch(given)
            vectors = batch["selection_vector"]
            for index, uri in enumerate(batch["filepath"].to_pylist()):
                masks[unquote(uri)] = vectors[index].values.cast(pa.bool_())
    return masks


def mask_of(masks: Mapping[str, pa.Array], path: str) -> pa.Array | None:
    """The mask of a data file by its path, or None."""
    # The shortest one: a table inside this table's folder has longer ones with the same end.
    found = sorted((uri for uri in masks if _is_end(uri, path)), key=len)
    return masks[found[0]] if found else None


def _is_end(uri: str, path: str) -> bool:
    return uri == path or uri.endswith("/" + path.lstrip("/"))


@contextlib.contextmanager
def _vectors_of(path: str, version: int, operator: str) -> Iterator[None]:
    """Read deletion vectors; delta-rs has one kind of error for all that may happen."""
    try:
        yield
    except (DeltaError, OSError, ValueError) as problem:
        text = without_secrets(str(problem), path)
        if "://" in path and "not found" not in text.lower():
            raise StorageError(
                f"the deletion vectors of '{shown(path)}' could not be read: {text}",
                operator=operator,
                kept=KEPT,
                do="check that the storage is reachable; it will be retried",
            ) from problem
        raise DataError(
            f"the deletion vectors of version {version} of '{shown(path)}' cannot be read: {text}",
            operator=operator,
            kept=KEPT,
            do=f"restore the table's files, or read the current version {NEW_QUERY}; "
            "set the retention longer than a run",
        ) from problem


class _Renamed:
    """A batch with another schema of the same structure; Arrow's C interface uses positions, not names."""

    def __init__(self, batch: pa.RecordBatch, schema: pa.Schema) -> None:
        self._batch, self._schema = batch, schema

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        return self._schema.__arrow_c_schema__(), self._batch.__arrow_c_array__()[1]


def renamed(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The same columns with the names of a schema, including nested ones; nothing is copied."""
    return pa.record_batch(_Renamed(batch, schema))
