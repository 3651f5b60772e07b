"""Conformance, "Commit", of `files_2pc`, in each format, and of `exchange_2pc`."""

from pathlib import Path

import pytest

from spark_ext.testing.sink_contract import SinkContract
from spark_ext.testing.sink_driver import SinkTarget
from spark_ext.testing.sink_queries import SinkQueryContract
from tests.exchange.exchange_kit import ExchangeTarget
from tests.sinks.files_2pc.files_target import FilesTarget
from tests.support.contracts import SAME_IN_ALL_MODES, without


@pytest.mark.core
class TestFiles2pc(SinkContract):
    @pytest.fixture
    def target(self, tmp_path: Path) -> SinkTarget:
        return FilesTarget(tmp_path / "t", "parquet")


class TestFiles2pcInSpark(SinkQueryContract):
    @pytest.fixture
    def target(self, tmp_path: Path) -> SinkTarget:
        return FilesTarget(tmp_path / "t", "parquet")


@without(*SAME_IN_ALL_MODES)
@pytest.mark.slow(0.1, "32 tests of two more formats")
class TestFiles2pcText(SinkContract):
    @pytest.fixture(params=["csv", "json"])
    def target(self, tmp_path: Path, request: pytest.FixtureRequest) -> SinkTarget:
        return FilesTarget(tmp_path / "t", request.param)


@pytest.mark.core
class TestExchange2pc(SinkContract):
    @pytest.fixture
    def target(self, tmp_path: Path) -> SinkTarget:
        return ExchangeTarget(tmp_path / "t")


@pytest.mark.slow(0.2, "each test commits to a Delta log")
class TestExchange2pcOfDelta(SinkContract):
    @pytest.fixture
    def target(self, tmp_path: Path) -> SinkTarget:
        return ExchangeTarget(tmp_path / "t", kind="delta")


class TestExchange2pcInSpark(SinkQueryContract):
    @pytest.fixture
    def target(self, tmp_path: Path) -> SinkTarget:
        # In the state of the kit's job: an exchange is part of its job.
        return ExchangeTarget(tmp_path / "state" / "exchanges")
