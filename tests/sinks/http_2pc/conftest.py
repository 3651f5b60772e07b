"""Fixtures for the tests of `http_2pc`."""

import types
from collections.abc import Iterator
from pathlib import Path

import pytest
import tenacity

from tests.conformance.test_commit_http import HttpTarget
from tests.servers.receiver import Receiver


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    with Receiver(tmp_path / "receiver") as there:
        yield there


@pytest.fixture
def target(receiver: Receiver, tmp_path: Path) -> HttpTarget:
    return HttpTarget(receiver.url, receiver.folder, tmp_path / "outbox")


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """All waits, written down instead of waited for."""
    slept: list[float] = []
    monkeypatch.setattr(tenacity.nap, "time", types.SimpleNamespace(sleep=slept.append))
    return slept
