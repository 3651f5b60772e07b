"""Conformance, "Commit", of `delta_2pc`."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, Field, Schema
from deltalake.schema import PrimitiveType

from spark_ext.sinks.contract import TwoPhaseCommitSink
from spark_ext.sinks.delta_2pc import DeltaTwoPhaseCommit
from spark_ext.testing.sink_contract import SinkContract
from spark_ext.testing.sink_driver import Row, SinkTarget
from spark_ext.testing.sink_queries import SinkQueryContract
from tests.sinks.delta_2pc import delta_kit
from tests.support.folders import folder_snapshot


class DeltaTarget(SinkTarget):
    """A table of its own."""

    before_commit = "delta.before_commit"
    after_commit = "delta.committed"
    points = ("delta.before_fence", "delta.fenced", "delta.cleaned")

    def __init__(self, path: Path) -> None:
        self.path = path

    def sink(self, uid: str = "out", **options: str) -> TwoPhaseCommitSink:
        return DeltaTwoPhaseCommit({"uid": uid, "path": str(self.path), **options})

    def rows(self) -> list[dict[str, Any]]:
        there = DeltaTable.is_deltatable(str(self.path))
        return delta_kit.table(self.path).to_pylist() if there else []

    def make_strict(self) -> None:
        fields = [Field("id", PrimitiveType("long")), Field("name", PrimitiveType("string"), nullable=False)]
        DeltaTable.create(str(self.path), Schema(fields))

    def spoiled(self, row: Row) -> Row:
        return {**row, "name": None}

    def leftovers(self) -> set[str]:
        live = {str(Path(uri).relative_to(self.path)) for uri in DeltaTable(self.path).file_uris()}
        return delta_kit.data_files(self.path) - live

    def drop(self) -> None:
        shutil.rmtree(self.path)

    def snapshot(self) -> Callable[[], object]:
        return folder_snapshot(self.path)

    def damage(self) -> Callable[[], object]:
        """The log's next entry is half a line, as a lost write leaves it."""
        entry = self.path / "_delta_log" / f"{DeltaTable(self.path).version() + 1:020}.json"
        entry.write_text('{"add"')
        return entry.unlink


class TestDelta2pc(SinkContract):
    @pytest.fixture
    def target(self, tmp_path: Path) -> SinkTarget:
        return DeltaTarget(tmp_path / "t")


class TestDelta2pcInSpark(SinkQueryContract):
    @pytest.fixture
    def target(self, tmp_path: Path) -> SinkTarget:
        return DeltaTarget(tmp_path / "t")
