"""Conformance, "Commit", of `delta_2pc`."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, Field, Schema
from deltalake.schema import PrimitiveType

from spark_ext.datafiles.writer import owner_of
from spark_ext.errors import ConfigurationError
from spark_ext.sinks.contract import TwoPhaseCommitSink
from spark_ext.sinks.delta_2pc import DeltaTwoPhaseCommit
from spark_ext.testing import every_type
from spark_ext.testing.sink_contract import SinkContract
from spark_ext.testing.sink_driver import Driver, Row, SinkTarget, table
from spark_ext.testing.sink_queries import SinkQueryContract
from tests.sinks.delta_2pc import delta_kit
from tests.support.contracts import SAME_IN_ALL_MODES, without
from tests.support.folders import folder_snapshot


class DeltaTarget(SinkTarget):
    before_commit = "delta.before_commit"
    after_commit = "delta.committed"
    points = ("delta.before_fence", "delta.fenced", "delta.cleaned")

    def __init__(self, path: Path) -> None:
        self.path = path

    def sink(self, uid: str = "out", **options: str) -> TwoPhaseCommitSink:
        return DeltaTwoPhaseCommit({"uid": uid, "path": str(self.path), **options})

    def rows(self) -> list[dict[str, Any]]:
        return delta_kit.table(self.path).to_pylist() if DeltaTable.is_deltatable(str(self.path)) else []

    def make_strict(self) -> None:
        fields = [Field("id", PrimitiveType("long")), Field("name", PrimitiveType("string"), nullable=False)]
        DeltaTable.create(str(self.path), Schema(fields))

    def spoiled(self, row: Row) -> Row:
        return {**row, "name": None}

    def leftovers(self) -> set[str]:
        return delta_kit.data_files(self.path) - delta_kit.live_files(self.path)

    def drop(self) -> None:
        shutil.rmtree(self.path)

    def snapshot(self) -> Callable[[], object]:
        return folder_snapshot(self.path)

    def damage(self) -> Callable[[], object]:
        """The log's next entry is half a line, as a lost write leaves it."""
        entry = self.path / "_delta_log" / f"{DeltaTable(self.path).version() + 1:020}.json"
        entry.write_text('{"add"')
        return entry.unlink


@pytest.mark.core
class TestDelta2pc(SinkContract):
    @pytest.fixture
    def target(self, tmp_path: Path) -> SinkTarget:
        return DeltaTarget(tmp_path / "t")


class UpsertTarget(DeltaTarget):
    huge = 200_000

    def sink(self, uid: str = "out", **options: str) -> TwoPhaseCommitSink:
        return super().sink(uid, **{"mode": "upsert", "key": "id", **options})

    def spoiled(self, row: Row) -> Row:
        raise NotImplementedError  # upserts do not put rows aside

    def leftovers(self) -> set[str]:
        # What a merge has replaced is part of older versions, and the names that delta-rs gives are nobody's.
        return {name for name in super().leftovers() if owner_of(name) is not None}


class UpsertValues(SinkContract):
    """The values, in rows that replace others."""

    def test_c9_nulls(self, target: SinkTarget) -> None:
        """The key may not be null; the other column may."""
        driver = Driver(target)
        driver.claim()
        driver.run(0, [{"id": 1, "name": None}, {"id": 2, "name": "n"}])
        driver.run(1, [{"id": 2, "name": None}])
        assert sorted(target.rows(), key=str) == [{"id": 1, "name": None}, {"id": 2, "name": None}]

    def test_c9_every_supported_type(self, target: SinkTarget) -> None:
        driver = Driver(target, schema=target.types, options={"key": "long"})
        driver.claim()
        values = [every_type.row(number) for number in range(1, 400, 7)] + [every_type.empty(-1)]
        driver.run(0, [{**every_type.empty(row["long"])} for row in values], partitions=2)
        driver.run(1, values, partitions=2)
        found = table(target.types, target.rows()).sort_by("long")
        assert found.to_pylist() == table(target.types, values).sort_by("long").to_pylist()


@without(*SAME_IN_ALL_MODES)
@pytest.mark.slow(0.1, "each test merges into a Delta table several times")
class TestDelta2pcUpsert(UpsertValues, SinkContract):
    @pytest.fixture
    def target(self, tmp_path: Path) -> SinkTarget:
        return UpsertTarget(tmp_path / "t")


class ApartTarget(UpsertTarget):
    """Upserts into a table with a partition whose folder delta-rs could not name: the sink writes all files itself."""

    def sink(self, uid: str = "out", **options: str) -> TwoPhaseCommitSink:
        return super().sink(uid, partition_by="name", **options)

    def rows(self) -> list[dict[str, Any]]:
        return [row for row in super().rows() if row["id"] >= 0]


class TestDelta2pcMergedApart:
    states_of_its_own = SinkContract._states_of_its_own
    test_c2 = SinkContract.test_c2_crash_at_every_step_and_each_epoch_is_there_once

    @pytest.fixture
    def target(self, tmp_path: Path) -> SinkTarget:
        target = ApartTarget(tmp_path / "t")
        seed = Driver(target, uid="seed")
        seed.claim()
        seed.run(0, [{"id": -1, "name": "x" * 300}])
        return target


@pytest.mark.core
class TestDelta2pcInSpark(SinkQueryContract):
    @pytest.fixture
    def target(self, tmp_path: Path) -> SinkTarget:
        return DeltaTarget(tmp_path / "t")


def test_an_upsert_does_not_put_rows_aside(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="on_bad_row=quarantine requires mode=append"):
        DeltaTarget(tmp_path / "t").sink(mode="upsert", key="id", on_bad_row="quarantine")
