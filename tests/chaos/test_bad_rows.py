"""Bad rows under `kill -9`: each row of the input is in the target or in the table of bad rows, once."""

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from spark_ext.failpoints import ONCE_DIR, VARIABLE, FailPoint
from tests.support import operators
from tests.support.killable import dirty, running
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


def test_good_and_bad_rows_are_the_input(tmp_path: Path) -> None:
    once = tmp_path / "once"
    once.mkdir()
    asked = ";".join(f"{step}={action}" for step, action in STEPS.items())
    code: int | None = None
    for _ in range(len(STEPS) + 3):
        with running(dirty, tmp_path, {VARIABLE: asked, ONCE_DIR: str(once)}) as driver:
            code = driver.wait(600)
            until(lambda: not driver.members(), "the driver's JVM and workers have ended")
        if code == 0:
            break
    assert code == 0, (tmp_path / "driver.log").read_text()[-5000:]
    assert {file.name for file in once.iterdir()} == set(STEPS)
    good = sorted((row["channel"], row["n"]) for row in operators.rows(tmp_path / "out"))
    table = pa.table(DeltaTable(str(tmp_path / "state" / "bad_rows" / "table")).scan())
    bad = sorted(
        (channel, int(raw.removeprefix("row ")))
        for channel, raw in zip(table["channel"].to_pylist(), table["raw"].to_pylist(), strict=True)
    )
    assert bad == [(channel, n) for channel in "01" for n in range(0, 3_000, 10)]
    assert good == [(channel, n) for channel in "01" for n in range(3_000) if n % 10]
    assert not [path for path in (tmp_path / "state" / "bad_rows" / "pending").rglob("*") if path.is_file()]
