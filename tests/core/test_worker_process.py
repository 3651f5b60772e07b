"""What a Python worker of Spark's holds is kept out of the collections that Spark makes after each task."""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_ext.spark import worker_process
from spark_ext.spark.worker_process import settle


@pytest.fixture(autouse=True)
def collector_as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(worker_process, "_loaded", 0)
    yield
    gc.unfreeze()


def test_nothing_is_frozen_outside_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_REUSE_WORKER", raising=False)
    settle()
    assert gc.get_freeze_count() == 0


def test_a_worker_freezes_what_is_loaded_once_and_again_when_more_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SPARK_REUSE_WORKER", "1")
    settle()
    first = gc.get_freeze_count()
    assert first > len(sys.modules)

    kept = [[number] for number in range(1000)]
    settle()
    assert gc.get_freeze_count() == first

    (tmp_path / "loaded_later.py").write_text("HELD = [[number] for number in range(1000)]\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("loaded_later")
    settle()
    assert gc.get_freeze_count() >= first + 2 * len(kept)
    del sys.modules["loaded_later"]


def test_garbage_is_collected_before_it_is_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_REUSE_WORKER", "1")

    class Node:
        gone = 0
        other: Node

        def __del__(self) -> None:
            Node.gone += 1

    first, second = Node(), Node()
    first.other, second.other = second, first
    del first, second
    settle()
    assert Node.gone == 2
