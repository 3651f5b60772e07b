"""Conformance of what can be in an object store: the contract kits, on a server with the interface of S3.

By default a few tests of each; all of them with `make test-all`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql.types import StructType

from spark_ext.schemas.ddl import columns
from spark_ext.sinks.contract import TwoPhaseCommitSink
from spark_ext.sinks.delta_2pc import DeltaTwoPhaseCommit
from spark_ext.sinks.files_2pc import committed_uris
from spark_ext.sinks.files_2pc.sink import FilesTwoPhaseCommit
from spark_ext.sources.contract import ChannelSource
from spark_ext.sources.delta_snapshot.source import DeltaSnapshot
from spark_ext.sources.files.source import Files
from spark_ext.stores import filesystem_of
from spark_ext.testing.sink_contract import SinkContract
from spark_ext.testing.sink_driver import SinkTarget
from spark_ext.testing.source_contract import SourceContract, SourceWorld
from tests.servers.object_store import Bucket, ObjectStore
from tests.servers.store_proxy import Fault, StoreProxy
from tests.sources.files import files_kit

SIZES = (3, 11, 1, 24)
"""Rows of each channel."""


@pytest.fixture
def proxy(object_store: ObjectStore, tmp_path: Path) -> Iterator[StoreProxy]:
    with StoreProxy(object_store.port, tmp_path) as proxy:
        yield proxy


@pytest.fixture
def in_store(object_store: ObjectStore, proxy: StoreProxy, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """A bucket that this process and its children find by the environment, through the proxy."""
    bucket = object_store.bucket(proxy.endpoint)
    for name, value in bucket.environment.items():
        monkeypatch.setenv(name, value)
    return bucket


class StoreTarget(SinkTarget):
    """A folder of a bucket."""

    refused: str
    """The requests without which no commit is possible."""

    huge = 100_000
    wide_columns = 200
    wide_value = 1_000_000

    def __init__(self, bucket: Bucket, proxy: StoreProxy) -> None:
        self.bucket, self.proxy = Bucket(bucket.endpoint, bucket.name), proxy
        self.uri = f"{bucket.uri}/t"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "proxy": None, "bucket": Bucket(self.bucket.endpoint, self.bucket.name)}

    def drop(self) -> None:
        for key in self.bucket.keys("t/"):
            self.bucket.client.delete_object(Bucket=self.bucket.name, Key=key)

    def snapshot(self) -> Callable[[], object]:
        before = {key: self.bucket.get(key) for key in self.bucket.keys("t/")}

        def put_back() -> None:
            self.drop()
            for key, content in before.items():
                self.bucket.put(key, content)

        return put_back

    def damage(self) -> Callable[[], object]:
        """Nobody may write to the log any more."""
        self.proxy.behave(Fault(self.refused, "PUT", status=403))
        return self.proxy.behave


class DeltaTarget(StoreTarget):
    before_commit = "delta.before_commit"
    after_commit = "delta.committed"
    points = ("delta.before_fence", "delta.fenced", "delta.cleaned")
    refused = "/_delta_log/"

    def sink(self, uid: str = "out", **options: str) -> TwoPhaseCommitSink:
        return DeltaTwoPhaseCommit({"uid": uid, "path": self.uri, **options})

    def rows(self) -> list[dict[str, Any]]:
        there = DeltaTable.is_deltatable(self.uri)
        return DeltaTable(self.uri).to_pyarrow_table().to_pylist() if there else []

    def leftovers(self) -> set[str]:
        there = {key.removeprefix("t/") for key in self.bucket.keys("t/") if "/_delta_log/" not in key}
        logs = [key for key in self.bucket.keys("t/_delta_log/") if re.search(r"\d{20}\.json$", key)]
        lines = [json.loads(line) for key in logs for line in self.bucket.get(key).splitlines()]
        return there - {unquote(line["add"]["path"]) for line in lines if "add" in line}


class FilesTarget(StoreTarget):
    before_commit = "files.before_commit"
    after_commit = "files.committed"
    points = ("files.before_claim", "files.claimed", "files.cleaned", "files.published")
    refused = "/_epochs/"

    def sink(self, uid: str = "out", **options: str) -> TwoPhaseCommitSink:
        return FilesTwoPhaseCommit({"uid": uid, "path": self.uri, **options})

    def _committed(self) -> list[str]:
        return committed_uris(self.uri) if self.bucket.keys("t/_files_2pc.json") else []

    def rows(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for uri in self._committed():
            system, path = filesystem_of(uri)
            found += pq.read_table(path, filesystem=system).to_pylist()
        return found

    def leftovers(self) -> set[str]:
        there = {f"{self.bucket.uri}/{key}" for key in self.bucket.keys("t/_files/")}
        return there - set(self._committed())


@pytest.mark.extended_but("_c2_crash_before", "_c4_")
class TestDelta2pcInStore(SinkContract):
    @pytest.fixture
    def target(self, in_store: Bucket, proxy: StoreProxy) -> SinkTarget:
        return DeltaTarget(in_store, proxy)


@pytest.mark.extended_but("_c2_crash_before", "_c4_")
class TestFiles2pcInStore(SinkContract):
    @pytest.fixture
    def target(self, in_store: Bucket, proxy: StoreProxy) -> SinkTarget:
        return FilesTarget(in_store, proxy)


class FilesWorld(SourceWorld):
    """Parquet files in a bucket."""

    schema = files_kit.SCHEMA

    def __init__(self, bucket: Bucket, folder: Path) -> None:
        self.uri = f"{bucket.uri}/in"
        for number, rows in enumerate(SIZES):
            file = folder / f"{number}.parquet"
            files_kit.write(file, files_kit.table(number * 100, rows), "parquet")
            bucket.put(f"in/{number}.parquet", file.read_bytes())

    def source(self, **options: str) -> ChannelSource:
        return Files({"uid": "files", "path": self.uri, "format": "parquet", **options})

    def expected(self) -> list[dict[str, Any]]:
        parts = [files_kit.table(number * 100, rows) for number, rows in enumerate(SIZES)]
        rows: list[dict[str, Any]] = pa.concat_tables(parts).to_pylist()
        return rows

    def misfits(self) -> list[StructType]:
        return [columns("id bigint, word bigint")]


class SnapshotWorld(SourceWorld):
    """A table of some files in a bucket."""

    def __init__(self, bucket: Bucket) -> None:
        self.uri = f"{bucket.uri}/in"
        for number, rows in enumerate(SIZES):
            write_deltalake(self.uri, files_kit.table(number * 100, rows), mode="append")

    def source(self, **options: str) -> ChannelSource:
        return DeltaSnapshot({"uid": "snapshot", "path": self.uri, **options})

    def expected(self) -> list[dict[str, Any]]:
        parts = [files_kit.table(number * 100, rows) for number, rows in enumerate(SIZES)]
        rows: list[dict[str, Any]] = pa.concat_tables(parts).to_pylist()
        return rows

    def misfits(self) -> list[StructType]:
        return [columns("id bigint, word bigint")]


@pytest.mark.extended_but("_r6_", "_r1_")
class TestFilesInStore(SourceContract):
    @pytest.fixture
    def world(self, in_store: Bucket, tmp_path: Path) -> SourceWorld:
        return FilesWorld(in_store, tmp_path)


@pytest.mark.extended_but("_r6_", "_r1_")
class TestDeltaSnapshotInStore(SourceContract):
    @pytest.fixture
    def world(self, in_store: Bucket) -> SourceWorld:
        return SnapshotWorld(in_store)
