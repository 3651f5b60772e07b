"""Conformance of the sources that ship: each runs the contract kit."""

from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql.types import StructType

from spark_ext.schemas.ddl import columns
from spark_ext.sources.contract import ChannelSource
from spark_ext.sources.datagen import DataGen
from spark_ext.sources.delta_snapshot.source import DeltaSnapshot
from spark_ext.sources.files.source import Files
from spark_ext.testing.source_contract import SourceContract, SourceWorld
from spark_ext.testing.source_queries import SourceQueryContract
from tests.exchange.exchange_kit import ExchangeWorld, PutBackWorld
from tests.sources.files import files_kit
from tests.support.inboxes import InboxWorld

SIZES = (3, 11, 1, 0, 24)  # rows of each channel


def numbered(sizes: Sequence[int] = SIZES) -> list[dict[str, Any]]:
    parts = [files_kit.table(number * 100, rows) for number, rows in enumerate(sizes)]
    rows: list[dict[str, Any]] = pa.concat_tables(parts).to_pylist()
    return rows


class FilesWorld(SourceWorld):
    schema = files_kit.SCHEMA

    def __init__(self, path: Path, kind: str) -> None:
        self.path, self.kind = path, kind
        for number, rows in enumerate(SIZES):
            files_kit.write(path / f"{number}.{kind}", files_kit.table(number * 100, rows), kind)

    def source(self, **options: str) -> ChannelSource:
        return Files({**files_kit.options(self.path, format=self.kind), **options})

    def expected(self) -> list[dict[str, Any]]:
        return numbered()

    def misfits(self) -> list[StructType]:
        return [columns("id bigint, word bigint")]


class SnapshotWorld(SourceWorld):
    def __init__(self, path: Path | str, sizes: Sequence[int] = SIZES) -> None:
        self.path, self.sizes = path, sizes
        for number, rows in enumerate(sizes):
            if rows:
                write_deltalake(path, files_kit.table(number * 100, rows), mode="append")

    def source(self, **options: str) -> ChannelSource:
        return DeltaSnapshot({"uid": "snapshot", "path": str(self.path), **options})

    def expected(self) -> list[dict[str, Any]]:
        return numbered(self.sizes)

    def misfits(self) -> list[StructType]:
        return [columns("id bigint, word bigint"), columns("id bigint, nowhere string")]


class FollowWorld(SnapshotWorld):
    """The same table, of which the first versions are read as a snapshot and the others as they came."""

    def source(self, **options: str) -> ChannelSource:
        return super().source(**{"follow": "true", "version": "2", "poll_interval": "0", **options})


class VersionsWorld(SnapshotWorld):
    one_channel = True

    def source(self, **options: str) -> ChannelSource:
        follow = {"follow": "true", "starting_version": "0", "poll_interval": "0", "split": "true"}
        return super().source(**{**follow, **options})


class ChangesWorld(VersionsWorld):
    """A table's change data feed; some rows are updated, some deleted."""

    def __init__(self, path: Path) -> None:
        self.path = path
        feed = {"delta.enableChangeDataFeed": "true"}
        write_deltalake(path, pa.table({"id": pa.array(range(20), pa.int64())}), configuration=feed)
        DeltaTable(path).update(updates={"id": "id + 100"}, predicate="id < 5")
        DeltaTable(path).delete("id >= 15 and id < 20")

    def source(self, **options: str) -> ChannelSource:
        return super().source(**{"changes": "true", **options})

    def expected(self) -> list[dict[str, Any]]:
        found = [(n, "insert", 0) for n in range(20)]
        for n in range(5):
            found += [(n, "update_preimage", 1), (n + 100, "update_postimage", 1)]
        found += [(n, "delete", 2) for n in range(15, 20)]
        return [
            {
                "id": id_,
                "_change_type": change,
                "_commit_version": version,
                "_commit_timestamp": datetime.fromtimestamp(self._at(version) / 1000, timezone.utc),
            }
            for id_, change, version in found
        ]

    def _at(self, version: int) -> int:
        return Path(self.path, f"_delta_log/{version:020}.json").stat().st_mtime_ns // 1_000_000

    def misfits(self) -> list[StructType]:
        return [columns("id string"), columns("id bigint, _commit_version string"), columns("nowhere bigint")]


class DataGenWorld(SourceWorld):
    def source(self, **options: str) -> ChannelSource:
        return DataGen({"uid": "gen", "rows_of": ",".join(map(str, SIZES)), "seed": "7", **options})

    def expected(self) -> list[dict[str, Any]]:
        whole = DataGen(self.options)
        return [
            row
            for channel, count in zip(whole.discover(), SIZES, strict=True)
            for batch in whole.read(channel, 0, count)
            for row in batch.to_pylist()
        ]

    def misfits(self) -> list[StructType]:
        return [columns("id string"), columns("nowhere bigint")]


@pytest.mark.core_for("parquet")
@pytest.mark.slow(0.1, "19 tests for each of five formats")
class TestFiles(SourceContract):
    @pytest.fixture(params=["parquet", "csv", "json", "orc", "avro"])
    def world(self, tmp_path: Path, request: pytest.FixtureRequest) -> SourceWorld:
        return FilesWorld(tmp_path / "in", request.param)


@pytest.mark.core
class TestFilesInSpark(SourceQueryContract):
    @pytest.fixture
    def world(self, tmp_path: Path) -> SourceWorld:
        return FilesWorld(tmp_path / "in", "parquet")


@pytest.mark.core
class TestDeltaSnapshot(SourceContract):
    @pytest.fixture(scope="class")
    def world(self, tmp_path_factory: pytest.TempPathFactory) -> SourceWorld:
        return SnapshotWorld(tmp_path_factory.mktemp("snapshot"))


@pytest.mark.slow(0.2, "each test reads versions of a Delta table, and there are 57")
class TestDeltaSnapshotFollowed(SourceContract):
    @pytest.fixture(scope="class", params=[FollowWorld, VersionsWorld, ChangesWorld])
    def world(self, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Any:
        return request.param(tmp_path_factory.mktemp("followed"))


@pytest.mark.core
class TestDataGen(SourceContract):
    @pytest.fixture
    def world(self) -> SourceWorld:
        return DataGenWorld()


@pytest.mark.core
class TestExchange(SourceContract):
    @pytest.fixture(scope="class")
    def world(self, tmp_path_factory: pytest.TempPathFactory) -> SourceWorld:
        return ExchangeWorld(tmp_path_factory.mktemp("exchange") / "in")


@pytest.mark.core
class TestHttpIngest(SourceContract):
    @pytest.fixture(scope="class")
    def world(self, tmp_path_factory: pytest.TempPathFactory) -> SourceWorld:
        return InboxWorld(tmp_path_factory.mktemp("inbox"))


@pytest.mark.slow(0.1, "each of 19 tests reads a Delta log")
class TestExchangeOfDelta(SourceContract):
    @pytest.fixture(scope="class")
    def world(self, tmp_path_factory: pytest.TempPathFactory) -> SourceWorld:
        return ExchangeWorld(tmp_path_factory.mktemp("exchange") / "in", kind="delta")


@pytest.mark.slow(0.1, "38 tests, each of which puts an exchange back first")
class TestExchangePutBack(SourceContract):
    @pytest.fixture(scope="class", params=["arrow", "delta"])
    def world(self, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> SourceWorld:
        return PutBackWorld(tmp_path_factory.mktemp("exchange") / "in", kind=request.param)


class TestExchangeInSpark(SourceQueryContract):
    @pytest.fixture
    def world(self, tmp_path: Path) -> SourceWorld:
        # Where the kit's job finds it: an exchange is part of its job.
        return ExchangeWorld(tmp_path / "state" / "exchanges" / "in", job=False)
