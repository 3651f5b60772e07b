"""Conformance of the sources that ship: each runs the contract kit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
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

SIZES = (3, 11, 1, 0, 24)
"""Rows of each channel."""


class FilesWorld(SourceWorld):
    """A folder of files of one format."""

    schema = files_kit.SCHEMA

    def __init__(self, path: Path, kind: str) -> None:
        self.path, self.kind = path, kind
        for number, rows in enumerate(SIZES):
            files_kit.write(path / f"{number}.{kind}", files_kit.table(number * 100, rows), kind)

    def source(self, **options: str) -> ChannelSource:
        return Files({**files_kit.options(self.path, format=self.kind), **options})

    def expected(self) -> list[dict[str, Any]]:
        parts = [files_kit.table(number * 100, rows) for number, rows in enumerate(SIZES)]
        rows: list[dict[str, Any]] = pa.concat_tables(parts).to_pylist()
        return rows

    def misfits(self) -> list[StructType]:
        return [columns("id bigint, word bigint")]


class SnapshotWorld(SourceWorld):
    """A table of some files; a file is a channel."""

    def __init__(self, path: Path) -> None:
        self.path = path
        for number, rows in enumerate(filter(None, SIZES)):
            write_deltalake(path, files_kit.table(number * 100, rows), mode="append")

    def source(self, **options: str) -> ChannelSource:
        return DeltaSnapshot({"uid": "snapshot", "path": str(self.path), **options})

    def expected(self) -> list[dict[str, Any]]:
        parts = [files_kit.table(number * 100, rows) for number, rows in enumerate(filter(None, SIZES))]
        rows: list[dict[str, Any]] = pa.concat_tables(parts).to_pylist()
        return rows

    def misfits(self) -> list[StructType]:
        return [columns("id bigint, word bigint"), columns("id bigint, nowhere string")]


class DataGenWorld(SourceWorld):
    """Its own rows."""

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


class TestFiles(SourceContract):
    # In the other formats only what reads in another way; all of it with `make test-all`.
    @pytest.fixture(
        params=[
            "parquet",
            pytest.param("csv", marks=pytest.mark.extended_but("_r6_")),
            pytest.param("json", marks=pytest.mark.extended_but("_r6_")),
            pytest.param("orc", marks=pytest.mark.extended_but("_r6_")),
            pytest.param("avro", marks=pytest.mark.extended_but("_r6_")),
        ]
    )
    def world(self, tmp_path: Path, request: pytest.FixtureRequest) -> SourceWorld:
        return FilesWorld(tmp_path / "in", request.param)


class TestFilesInSpark(SourceQueryContract):
    @pytest.fixture
    def world(self, tmp_path: Path) -> SourceWorld:
        return FilesWorld(tmp_path / "in", "parquet")


class TestDeltaSnapshot(SourceContract):
    @pytest.fixture
    def world(self, tmp_path: Path) -> SourceWorld:
        return SnapshotWorld(tmp_path / "in")


class TestDataGen(SourceContract):
    @pytest.fixture
    def world(self) -> SourceWorld:
        return DataGenWorld()


class TestExchange(SourceContract):
    """Its channels advance together, to the same entry; they end by the seal."""

    @pytest.fixture
    def world(self, tmp_path: Path) -> SourceWorld:
        return ExchangeWorld(tmp_path / "in")


class TestExchangeOfDelta(SourceContract):
    @pytest.fixture
    def world(self, tmp_path: Path) -> SourceWorld:
        return ExchangeWorld(tmp_path / "in", kind="delta")


@pytest.mark.extended
class TestExchangePutBack(SourceContract):
    @pytest.fixture(params=["arrow", "delta"])
    def world(self, tmp_path: Path, request: pytest.FixtureRequest) -> SourceWorld:
        return PutBackWorld(tmp_path / "in", kind=request.param)


@pytest.mark.extended
class TestExchangeInSpark(SourceQueryContract):
    @pytest.fixture
    def world(self, tmp_path: Path) -> SourceWorld:
        # Where the kit's job finds it: an exchange is part of its job.
        return ExchangeWorld(tmp_path / "state" / "exchanges" / "in", job=False)
