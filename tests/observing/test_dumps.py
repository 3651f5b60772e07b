"""Dumps of the test session's own processes: what is in them, that each incident has one, and what is refused."""

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_ext import masking
from spark_ext.errors import StorageError
from spark_ext.observing.dump_folder import ABOUT, FOLDER, HEAP, STACKS
from spark_ext.observing.dumps import Dumps
from spark_ext.settings import JobSettings
from spark_ext.testing.waiting import until
from tests.incidents.made import incident

STALL = replace(incident("i1", query="load", what="no progress"), type="stall")
OURS = "spark-ext-dumps-lab"


def dumps(spark: SparkSession, state: Path | str, **settings: Any) -> Dumps:
    given = JobSettings.of("lab", {"dumps": "stacks", "monitor_interval": 0, **settings})
    return Dumps(spark, "lab", str(state), given, tuple)


def idle() -> None:
    until(lambda: all(thread.name != OURS for thread in threading.enumerate()), "its thread ends", 60)


def test_an_incident_has_one_dump_and_its_evidence_the_path(spark: SparkSession, tmp_path: Path) -> None:
    taken = dumps(spark, tmp_path)
    path = str(tmp_path / FOLDER / "i1")
    assert taken.noted(STALL, {"since": "now"}) == {"since": "now", "dump": path}
    assert taken.noted(STALL, None) == {"dump": path}
    idle()
    text = (Path(path) / STACKS).read_text()
    assert text.startswith("job 'shop', query 'load': no progress\n")
    assert "driver's Python process" in text and "test_dumps.py" in text
    assert "== driver's JVM ==" in text and '"main"' in text and "at java.base" in text
    assert sorted(one.name for one in Path(path).iterdir()) == [ABOUT, STACKS]

    # By another start, in which the incident is open still: it stays as it is.
    (Path(path) / STACKS).write_text("of the first start")
    assert dumps(spark, tmp_path).noted(STALL, {})["dump"] == path
    idle()
    assert (Path(path) / STACKS).read_text() == "of the first start"


def test_other_incidents_have_none_and_cost_nothing(spark: SparkSession, tmp_path: Path) -> None:
    before = set(threading.enumerate())
    assert dumps(spark, tmp_path).noted(incident("i2", labels={"type": "RESOURCE"}), {"a": 1}) == {"a": 1}
    assert set(threading.enumerate()) <= before and not (tmp_path / FOLDER).exists()


def test_secrets_are_masked_in_stacks(spark: SparkSession, tmp_path: Path) -> None:
    masking.remember("hunter2-hunter2")
    over = threading.Event()
    threading.Thread(target=over.wait, name="reads hunter2-hunter2", daemon=True).start()
    try:
        path = dumps(spark, tmp_path).take("password hunter2-hunter2", heap=False, timeout=60)
    finally:
        over.set()
    found = "".join(one.read_text() for one in Path(path).iterdir())
    assert "hunter2" not in found and '"reads ***"' in found and "password ***" in found


def test_the_heap_is_one_that_tools_can_read(spark: SparkSession, tmp_path: Path) -> None:
    path = Path(dumps(spark, tmp_path).take("on request", heap=True, timeout=120))
    assert sorted(one.name for one in path.iterdir()) == [ABOUT, HEAP, STACKS]
    with (path / HEAP).open("rb") as heap:
        assert heap.read(19) == b"JAVA PROFILE 1.0.2\0"
    assert (path / HEAP).stat().st_mode & 0o077 == 0


def test_only_stacks_are_written_if_the_heap_may_not_fit(spark: SparkSession, tmp_path: Path) -> None:
    small = dumps(spark, tmp_path, dumps_size="2m")
    with pytest.raises(StorageError, match="dumps_size is 2,097,152"):
        small.take("on request", heap=True, timeout=120)
    (path,) = (tmp_path / FOLDER).iterdir()
    assert sorted(one.name for one in path.iterdir()) == [ABOUT, STACKS]


def test_what_cannot_be_written_is_an_error_of_the_dump_alone(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / FOLDER).write_text("in the way")
    broken = dumps(spark, tmp_path)
    assert broken.noted(STALL, None) is not None
    with pytest.raises(StorageError, match="the dump is not complete"):
        broken.take("on request", heap=False, timeout=60)


def test_nothing_is_taken_after_the_end(spark: SparkSession, tmp_path: Path) -> None:
    ended = dumps(spark, tmp_path)
    ended.finish()
    assert ended.noted(STALL, {}) == {}
    with pytest.raises(StorageError):
        ended.take("on request", heap=False, timeout=60)
    assert not (tmp_path / FOLDER).exists()
