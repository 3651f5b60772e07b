"""Conformance of what can be in an object store: the contract kits, on a server with the interface of S3."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import StructType

from spark_ext.schemas.ddl import columns
from spark_ext.sources.contract import ChannelSource
from spark_ext.sources.files.source import Files
from spark_ext.testing.sink_contract import SinkContract
from spark_ext.testing.sink_driver import SinkTarget
from spark_ext.testing.source_contract import SourceContract, SourceWorld
from tests.conformance.test_sources import SnapshotWorld, numbered
from tests.servers.object_store import Bucket, ObjectStore
from tests.servers.store_proxy import StoreProxy
from tests.sinks.store_targets import DeltaInStore, FilesInStore
from tests.sources.files import files_kit
from tests.support.contracts import SAME_IN_ALL_MODES, without

SIZES = (3, 11, 1, 24)  # rows of each channel


@pytest.fixture
def proxy(object_store: ObjectStore, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[StoreProxy | None]:
    """For the tests that damage the target: it doubles the time of each request."""
    if "_c8_" not in request.node.name:
        yield None
        return
    with StoreProxy(object_store.port, tmp_path) as proxy:
        yield proxy


@pytest.fixture
def in_store(object_store: ObjectStore, proxy: StoreProxy | None, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """A bucket that this process and its children find by the environment."""
    bucket = object_store.bucket(proxy.endpoint if proxy else None)
    bucket.use(monkeypatch)
    return bucket


@without(*SAME_IN_ALL_MODES)
@pytest.mark.core_for("_c4_")
class TestDelta2pcInStore(SinkContract):
    @pytest.fixture
    def target(self, in_store: Bucket, proxy: StoreProxy | None) -> SinkTarget:
        return DeltaInStore(in_store, proxy)


@without(*SAME_IN_ALL_MODES)
class TestFiles2pcInStore(SinkContract):
    @pytest.fixture
    def target(self, in_store: Bucket, proxy: StoreProxy | None) -> SinkTarget:
        return FilesInStore(in_store, proxy)


class FilesWorld(SourceWorld):
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
        return numbered(SIZES)

    def misfits(self) -> list[StructType]:
        return [columns("id bigint, word bigint")]


@pytest.fixture(scope="module")
def read_only(object_store: ObjectStore) -> Bucket:
    return object_store.bucket()


@pytest.fixture(scope="module")
def files(read_only: Bucket, tmp_path_factory: pytest.TempPathFactory) -> SourceWorld:
    return FilesWorld(read_only, tmp_path_factory.mktemp("files"))


@pytest.fixture(scope="module")
def snapshot(read_only: Bucket) -> SourceWorld:
    with pytest.MonkeyPatch.context() as given:
        read_only.use(given)
        return SnapshotWorld(f"{read_only.uri}/table", SIZES)


@pytest.mark.core_for("_r1_")
class TestFilesInStore(SourceContract):
    @pytest.fixture
    def world(self, files: SourceWorld, read_only: Bucket, monkeypatch: pytest.MonkeyPatch) -> SourceWorld:
        read_only.use(monkeypatch)
        return files


class TestDeltaSnapshotInStore(SourceContract):
    @pytest.fixture
    def world(self, snapshot: SourceWorld, read_only: Bucket, monkeypatch: pytest.MonkeyPatch) -> SourceWorld:
        read_only.use(monkeypatch)
        return snapshot
