"""A folder of `files_2pc` as a target of the contract kit, read without Spark, by the log and by its links."""

import base64
import json
import shutil
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
from pyspark.sql import types as T

from spark_ext.sinks.contract import TwoPhaseCommitSink
from spark_ext.sinks.files_2pc.folder import Folder
from spark_ext.sinks.files_2pc.sink import FilesTwoPhaseCommit, committed_files
from spark_ext.storage import Location
from spark_ext.testing.every_type import EVERY_TYPE, without
from spark_ext.testing.sink_driver import Row, SinkTarget
from spark_ext.worker_internals import to_arrow_schema
from tests.support.folders import folder_snapshot


class FilesTarget(SinkTarget):
    before_commit = "files.before_commit"
    after_commit = "files.committed"
    points = ("files.before_claim", "files.claimed", "files.cleaned", "files.published")

    def __init__(self, path: Path, kind: str, **options: str) -> None:
        self.path, self.kind, self.given = path, kind, options

    @property
    def huge(self) -> int:  # type: ignore[override]
        return 1_000_000 if self.kind == "parquet" else 200_000

    @property
    def types(self) -> T.StructType:  # type: ignore[override]
        return without("bytes", "list", "map", "nested") if self.kind == "csv" else EVERY_TYPE

    def sink(self, uid: str = "out", **options: str) -> TwoPhaseCommitSink:
        return FilesTwoPhaseCommit({"uid": uid, "path": str(self.path), "format": self.kind, **self.given, **options})

    def _folder(self) -> Folder:
        return Folder(Location(str(self.path)), "test")

    def rows(self) -> list[dict[str, Any]]:
        about = self._folder().about()
        if about is None:
            return []
        files = committed_files(self.path)
        assert links(self.path) <= {file.name for file in files}, "only committed files are linked"
        return [row for file in files for row in read_file(file, self.kind, about.schema)]

    spoiling = MappingProxyType({"partition_by": "name"})

    def spoiled(self, row: Row) -> Row:
        if self.kind != "parquet":
            raise NotImplementedError  # without the partition a column is left that CSV cannot have alone
        return {**row, "name": f"{row['name']:x<300}"}

    def leftovers(self) -> set[str]:
        return set(self._folder().files.folder.files()) - {file["path"] for file in self._folder().committed()}

    def drop(self) -> None:
        shutil.rmtree(self.path)

    def snapshot(self) -> Callable[[], object]:
        return folder_snapshot(self.path)

    def damage(self) -> Callable[[], object]:
        """The log is gone, and a file is in the place of its folder."""
        log, aside = self.path / "_epochs", self.path / "_epochs.aside"
        log.rename(aside)
        log.touch()

        def mend() -> None:
            log.unlink()
            aside.rename(log)

        return mend


def links(path: Path) -> set[str]:
    """Names of the files that a reader finds who knows nothing of the log."""
    return {file.name for file in path.rglob("part-*") if "_files" not in file.parts}


def read_file(file: Path, kind: str, schema: T.StructType) -> list[dict[str, Any]]:
    found: list[dict[str, Any]]
    if kind == "parquet":
        found = pq.ParquetFile(file).read().to_pylist()
        return found
    if kind == "csv":
        found = csv_table(file, to_arrow_schema(schema)).to_pylist() if file.stat().st_size else []
        return found
    return [from_json(json.loads(line), schema) for line in file.read_text(encoding="utf-8").splitlines()]


def csv_table(file: Path, wanted: pa.Schema) -> pa.Table:
    named = pc.ReadOptions(column_names=wanted.names, block_size=32 * 1024**2)
    kinds = pc.ConvertOptions(
        column_types=wanted,
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
        true_values=["true"],
    )
    return pc.read_csv(file, named, pc.ParseOptions(newlines_in_values=True), kinds)


def from_json(value: Any, kind: T.DataType) -> Any:
    if value is None:
        return None
    if isinstance(kind, T.StructType):
        return {field.name: from_json(value[field.name], field.dataType) for field in kind.fields}
    if isinstance(kind, T.ArrayType):
        return [from_json(item, kind.elementType) for item in value]
    if isinstance(kind, T.MapType):
        return [(key, from_json(item, kind.valueType)) for key, item in value.items()]
    if isinstance(kind, T.DecimalType):
        return Decimal(value)
    if isinstance(kind, T.DateType):
        return date.fromisoformat(value)
    if isinstance(kind, (T.TimestampType, T.TimestampNTZType)):
        return datetime.fromisoformat(value.replace("Z", "+00:00"))
    if isinstance(kind, T.BinaryType):
        return base64.b64decode(value)
    return float(value) if isinstance(kind, (T.FloatType, T.DoubleType)) else value


def table_of(path: Path) -> pa.Table:
    return pa.concat_tables([pq.read_table(file) for file in committed_files(path)])
