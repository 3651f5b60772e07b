"""Bad rows under `kill -9`: each row of the input is in the target or in the table of bad rows, once."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from spark_ext.failpoints import ONCE_DIR, VARIABLE, FailPoint
from spark_ext.jobs.job import Job
from tests.support import operators
from tests.support.jobs import JobHarness
from tests.support.killable import dirty, judged, running
from tests.support.waiting import until

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(3600)]

STEPS: dict[str, str] = {
    # In a task: Spark's attempt fails, or all of the driver's processes are gone.
    FailPoint.BAD_ROWS_BEFORE_FILE: "kill",
    FailPoint.BAD_ROWS_FILE: "kill-driver#2",
    # Between the target's commit and Spark's: the epoch is read again.
    FailPoint.SINK_COMMITTED: "kill-driver#2",
    # In the driver, behind Spark's commit.
    FailPoint.BAD_ROWS_BEFORE_COMMIT: "kill",
    FailPoint.BAD_ROWS_COMMITTED: "kill",
    FailPoint.BAD_ROWS_DELETED: "kill",
    FailPoint.FINAL_BEFORE_COMPLETED: "kill",
}


RULES: dict[str, str] = {
    # In the process that commits: all of the driver's processes are gone, and the epoch is repeated.
    FailPoint.SINK_WRITTEN: "kill-driver#2",
    FailPoint.BAD_ROWS_KEPT: "kill-driver",
    FailPoint.BAD_ROWS_DECIDED: "kill-driver#2",
    FailPoint.SINK_COMMITTED: "kill-driver#2",
    FailPoint.RULES_COUNTED: "kill-driver#2",
    # In the driver, behind Spark's commit.
    FailPoint.BAD_ROWS_BEFORE_COMMIT: "kill",
    FailPoint.BAD_ROWS_COMMITTED: "kill",
}


def killed_at_each(steps: Mapping[str, str], job: Callable[[JobHarness], Job], folder: Path) -> None:
    """Run a job until it has finished, and kill it once at each step."""
    once = folder / "once"
    once.mkdir()
    asked = ";".join(f"{step}={action}" for step, action in steps.items())
    code: int | None = None
    for _ in range(len(steps) + 3):
        with running(job, folder, {VARIABLE: asked, ONCE_DIR: str(once)}) as driver:
            code = driver.wait(600)
            until(lambda: not driver.members(), "the driver's JVM and workers have ended")
        if code == 0:
            break
    assert code == 0, (folder / "driver.log").read_text()[-5000:]
    assert {file.name for file in once.iterdir()} == set(steps)


def test_good_bad_and_dropped_rows_are_the_input(tmp_path: Path) -> None:
    """By rules, of which each start judges the same rows in other tasks."""
    killed_at_each(RULES, judged, tmp_path)
    ids = [(channel, n) for channel in "01" for n in range(3_000)]
    table = pa.table(DeltaTable(str(tmp_path / "out")).scan())
    good = sorted(zip(table["channel"].to_pylist(), table["n"].to_pylist(), strict=True))
    assert good == [(channel, n) for channel, n in ids if n % 5 and n % 3]
    bad = pa.table(DeltaTable(str(tmp_path / "state" / "bad_rows" / "table")).scan())
    raw = map(json.loads, bad["raw"].to_pylist())
    found = {(row["channel"], row["n"]): names for row, names in zip(raw, bad["rules"].to_pylist(), strict=True)}
    rules = (("odd", 5), ("small", 3), ("seen", 7))
    assert len(found) == bad.num_rows
    assert found == {(c, n): [name for name, by in rules if n % by == 0] for c, n in ids if n % 5 == 0}
    assert not [path for path in (tmp_path / "state" / "bad_rows" / "sinks").rglob("*") if path.is_file()]


def test_good_and_bad_rows_are_the_input(tmp_path: Path) -> None:
    killed_at_each(STEPS, dirty, tmp_path)
    good = sorted((row["channel"], row["n"]) for row in operators.rows(tmp_path / "out"))
    table = pa.table(DeltaTable(str(tmp_path / "state" / "bad_rows" / "table")).scan())
    bad = sorted(
        (channel, int(raw.removeprefix("row ")))
        for channel, raw in zip(table["channel"].to_pylist(), table["raw"].to_pylist(), strict=True)
    )
    assert bad == [(channel, n) for channel in "01" for n in range(0, 3_000, 10)]
    assert good == [(channel, n) for channel in "01" for n in range(3_000) if n % 10]
    assert not [path for path in (tmp_path / "state" / "bad_rows" / "pending").rglob("*") if path.is_file()]
