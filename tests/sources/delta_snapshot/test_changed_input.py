"""`delta_snapshot` on tables that change or are odd: shallow clones, files that are gone, another table at the path."""

import base64
import json
import shutil
import struct
from collections.abc import Callable
from datetime import date, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from spark_ext.datafiles.input_file import resolve
from spark_ext.datafiles.uri import shown, without_secrets
from spark_ext.errors import ConfigurationError, DataError, SparkExtError, TerminalError
from spark_ext.schemas.columns import fits
from spark_ext.sources.contract import Channel, Limit
from spark_ext.sources.delta_snapshot.source import DeltaSnapshot
from tests.sources.delta_snapshot.test_plan import append, ids, source


def recreated(path: Path) -> None:
    shutil.rmtree(path)
    append(path, 100, 5)
    append(path, 105, 5)


def vacuumed(path: Path) -> None:
    append(path, 200, 1, mode="overwrite")
    DeltaTable(path).vacuum(0, dry_run=False, enforce_retention_duration=False)


def resized(path: Path) -> None:
    for file in path.glob("*.parquet"):
        file.write_bytes(file.read_bytes() + b"PAR1")


CHANGES: dict[str, tuple[Callable[[Path], object], type[TerminalError], str]] = {
    "recreated": (recreated, DataError, "was replaced by another one"),
    "vacuumed": (vacuumed, DataError, "no longer exists"),
    "dropped": (shutil.rmtree, ConfigurationError, "is not a Delta table"),
    "log dropped": (lambda path: shutil.rmtree(path / "_delta_log"), ConfigurationError, "is not a Delta table"),
    "rewritten": (resized, DataError, "bytes when it was discovered"),
}


@pytest.mark.parametrize(("change", "kind", "message"), CHANGES.values(), ids=CHANGES.keys())
@pytest.mark.parametrize("begun", ["half", "finished", "between"])
def test_a_table_that_changed_before_a_restart_is_refused(
    tmp_path: Path, change: Callable[[Path], object], kind: type[TerminalError], message: str, begun: str
) -> None:
    path = tmp_path / "t"
    append(path, 0, 5)
    append(path, 5, 5)
    first, second = source(path).discover()
    known, finished = {
        "half": ([Channel(first.id, None, first.data)], frozenset()),
        "finished": ([Channel(second.id, None, second.data)], frozenset({first.id})),
        "between": ([], frozenset({first.id})),
    }[begun]
    declared = source(path).declared
    change(path)
    made = DeltaSnapshot({"uid": "delta-test", "path": str(path)})
    made.declared = declared
    made.resume(known, finished)
    with pytest.raises(kind, match=message):
        for channel in made.discover():
            made.advance(channel, 0, Limit())


def edited(path: Path, target: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Write the log of a table with one commit elsewhere, with changed actions."""
    (log,) = (path / "_delta_log").glob("*.json")
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for action in actions:
        change(action)
    (target / "_delta_log").mkdir(parents=True, exist_ok=True)
    (target / "_delta_log" / log.name).write_text("\n".join(map(json.dumps, actions)))


def vector(row: int) -> dict[str, Any]:
    """A deletion vector inside the log, of one row: a roaring bitmap in Z85."""
    bitmap = struct.pack("<iqiiiHHiH", 1681511377, 1, 0, 12346, 1, 0, 0, 16, row)
    rfc1924 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
    z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
    text = base64.b85encode(bitmap + bytes(-len(bitmap) % 4)).decode().translate(str.maketrans(rfc1924, z85))
    return {"storageType": "i", "pathOrInlineDv": text, "sizeInBytes": len(bitmap), "cardinality": 1}


def protocol(*features: str) -> dict[str, Any]:
    wanted = {"minReaderVersion": 3, "minWriterVersion": 7}
    return {**wanted, "readerFeatures": list(features), "writerFeatures": list(features)}


@pytest.mark.parametrize("deleted", [None, 2])
def test_absolute_paths_of_a_shallow_clone(tmp_path: Path, deleted: int | None) -> None:
    append(tmp_path / "a b", 0, 5)

    def absolute(action: dict[str, Any]) -> None:
        if "add" in action:
            action["add"]["path"] = "file:" + quote(f"{tmp_path}/a b/{action['add']['path']}")
            if deleted is not None:
                action["add"]["deletionVector"] = vector(deleted)
        if "protocol" in action and deleted is not None:
            action["protocol"] = protocol("deletionVectors")

    edited(tmp_path / "a b", tmp_path / "clone", absolute)
    assert ids(source(tmp_path / "clone")) == [id_ for id_ in range(5) if id_ != deleted]


def test_a_deletion_vector_that_is_gone_is_named(tmp_path: Path) -> None:
    append(tmp_path, 0, 5)

    def gone(action: dict[str, Any]) -> None:
        if "add" in action:
            where = {"storageType": "p", "pathOrInlineDv": f"file://{tmp_path}/deletion_vector_1.bin", "offset": 1}
            action["add"]["deletionVector"] = {**vector(0), **where}
        if "protocol" in action:
            action["protocol"] = protocol("deletionVectors")

    edited(tmp_path, tmp_path, gone)
    with pytest.raises(DataError, match=r"deletion vectors of version 0 of .* cannot be read"):
        ids(source(tmp_path))


@pytest.mark.slow(15, "writes and clones a table with Spark")
def test_a_shallow_clone_by_spark_and_its_deletion_vectors(spark: SparkSession, tmp_path: Path) -> None:
    base, clone = tmp_path / "a b", tmp_path / "clone"
    frame = spark.range(6).coalesce(1).write.format("delta")
    frame.option("delta.enableDeletionVectors", "true").save(str(base))
    spark.sql(f"delete from delta.`{base}` where id = 2")
    spark.sql(f"create table delta.`{clone}` shallow clone delta.`{base}`")
    assert ids(source(clone)) == [0, 1, 3, 4, 5]
    for vector in base.glob("deletion_vector*"):
        vector.unlink()
    for path in (base, clone):
        with pytest.raises(DataError, match=r"deletion vectors of version \d of .* cannot be read"):
            ids(source(path))


def test_a_date_is_widened_to_a_timestamp_without_a_zone(tmp_path: Path) -> None:
    assert not fits(pa.date32(), pa.timestamp("us"))
    assert not fits(pa.date32(), pa.timestamp("us", "UTC"), grown=True)
    write_deltalake(tmp_path, pa.table({"id": [date(2024, 2, 3), None]}))

    def widened(action: dict[str, Any]) -> None:
        if "metaData" in action:
            action["metaData"]["schemaString"] = action["metaData"]["schemaString"].replace('"date"', '"timestamp_ntz"')
        if "protocol" in action:
            action["protocol"] = protocol("timestampNtz", "typeWidening")

    edited(tmp_path, tmp_path, widened)
    made = source(tmp_path)
    assert made.schema().simpleString() == "struct<id:timestamp_ntz>"
    (channel,) = made.discover()
    (batch,) = made.read(channel, 0, 2)
    assert batch["id"].to_pylist() == [datetime(2024, 2, 3), None]


def test_a_struct_field_of_different_case_in_a_file_is_not_null(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.table({"id": [1], "s": pa.array([{"field": 7}])}))

    def named(action: dict[str, Any]) -> None:
        if "metaData" in action:
            action["metaData"]["schemaString"] = action["metaData"]["schemaString"].replace('"field"', '"Field"')

    edited(tmp_path, tmp_path, named)
    made = source(tmp_path)
    (channel,) = made.discover()
    with pytest.raises(DataError, match="column 's' has the type struct<field: int64> where struct<Field: int64>"):
        list(made.read(channel, 0, 1))


@pytest.mark.parametrize(
    "uri",
    [
        "s3://AKIAKEY:5eCrEt@bucket/x?bogus=1", "s3://AKIAKEY:5eC/rEt@bucket/x",
        "s3://bucket/x?access_key=AKIAKEY&secret_key=5eCrEt&bogus=1", "ftp://AKIAKEY:5eCrEt@host/x",
    ],
)  # fmt: skip
def test_secrets_of_a_uri_are_not_shown(uri: str) -> None:
    with pytest.raises(SparkExtError) as refused:
        resolve(uri, "source 's'")
    assert refused.value.__suppress_context__
    for secret in ("5eC", "rEt", "AKIAKEY"):
        assert secret not in str(refused.value)
        assert secret not in without_secrets(f"cannot open {uri} ({uri[5:]})", uri)
    assert "bucket" in shown(uri) or "host" in shown(uri)
    assert shown("/a@b/c?d=e") == "/a@b/c?d=e"
    assert shown("s3://bucket/a@b") == "s3://bucket/a@b"
