"""Fixtures for the tests of sinks."""

from collections import Counter
from pathlib import Path

import pytest

from spark_ext import failpoints
from spark_ext.spark.session import registry
from spark_ext.testing.sink_driver import STATES


@pytest.fixture(autouse=True)
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session of its own, in which no fail point was passed."""
    monkeypatch.setenv(registry.VARIABLE, str(tmp_path / "registry"))
    monkeypatch.setattr(failpoints, "_passed", Counter())


@pytest.fixture
def states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drivers remember which epochs are committed, as a job's state does."""
    monkeypatch.setenv(STATES, str(tmp_path / "states"))
