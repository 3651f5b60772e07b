"""Real drivers that are killed while they commit epochs and compact behind them, against pandas.

Each start repeats the last epoch, as Spark does after a crash between the two commits, and continues. They are killed
at named steps, in the thread that compacts as well, and wherever they happen to be.
"""

import random
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pandas as pd
import pytest
from deltalake import DeltaTable

from spark_ext import failpoints
from spark_ext.delta.optimize import Optimize, run
from spark_ext.model.commits import Claim
from spark_ext.testing.children import Child
from spark_ext.testing.waiting import until
from tests.sinks.delta_2pc.delta_kit import Start, ddl, table

ROWS = ddl("id long, at long, gone boolean, v long")
EPOCHS: Final = 40
RULE: Final = {"mode": "upsert", "key": "id", "newest_by": "at", "deleted_if": "gone"}

STEPS: Final = (
    "delta.before_fence",
    "delta.fenced",
    "delta.cleaned",
    "delta.before_commit",
    "delta.committed",
    "delta.before_optimize",
    "delta.optimized",
)


@dataclass(frozen=True)
class Kind:
    options: Mapping[str, str]
    in_order: bool = False

    def rows(self, epoch: int) -> list[dict[str, Any]]:
        """The rows of an epoch: the same in each attempt, keys of earlier ones, and times that tell them apart."""
        chance = random.Random(epoch)
        ids = chance.sample(range(60), 12)
        times = [epoch * 100 + number if self.in_order else chance.randrange(10**9) for number in range(12)]
        return [
            {"id": one, "at": at, "gone": chance.random() < 0.2, "v": epoch * 100 + one}
            for one, at in zip(ids, times, strict=True)
        ]

    def expected(self, epochs: int) -> pd.DataFrame:
        rows = pd.DataFrame([row for epoch in range(epochs) for row in self.rows(epoch)])
        if "mode" not in self.options:
            return rows.sort_values("at", ignore_index=True)
        newest = rows.sort_values("at").drop_duplicates("id", keep="last")
        if self.options["tombstones"] == "drop":
            newest = newest[~newest["gone"]].drop(columns="gone")
        return newest.sort_values("at", ignore_index=True)


KINDS: Final = {
    "append": Kind({}),
    "keep": Kind({**RULE, "tombstones": "keep"}),
    "drop": Kind({**RULE, "tombstones": "drop"}, in_order=True),
}


def drive(path: Path, name: str, incarnation: int, first: int, planned: int) -> None:
    kind = KINDS[name]
    driver = Start(path, ROWS, incarnation, options={**kind.options, "optimize_interval": "1 ms"})
    sink = driver.sink()
    sink.validate(ROWS)
    who = (driver.uid, "job", driver.job_id, incarnation, 0)
    sink.claim(Claim(*who, start=driver.start, query_id=driver.query_id, planned=planned))
    for number in range(first, EPOCHS):
        rows = kind.rows(number)
        parts = [driver.write(number, rows[task::2], task) for task in range(2)]
        driver.sink().commit(ROWS, driver.epoch(number), [part for part in parts if part])
        print(f"epoch {number}", flush=True)


@pytest.mark.parametrize("kills", [8, 60])
@pytest.mark.parametrize("name", KINDS)
def test_whatever_is_killed_the_table_is_what_pandas_says(tmp_path: Path, name: str, kills: int) -> None:
    path, chance, killed, incarnation, code = tmp_path / "t", random.Random(kills), 0, 0, None
    while code != 0:
        incarnation += 1
        env = {}
        if killed < kills and chance.random() < 0.6:
            env = {failpoints.VARIABLE: f"{chance.choice(STEPS)}=kill#{chance.randint(1, 3)}"}
        with Child(drive, path, name, incarnation, _last(path) or 0, EPOCHS, env=env) as child:
            if not env and killed < kills:
                _some(child, chance.randint(0, 3))
                code = child.poll()
                assert code in (None, 0), child.text()
                killed += code is None
                continue  # which kills it, wherever it is
            said, code = child.wait(), child.poll()
        assert code in (0, -signal.SIGKILL), said
        killed += code != 0
    found = table(path).to_pandas().sort_values("at", ignore_index=True)
    pd.testing.assert_frame_equal(found, KINDS[name].expected(EPOCHS)[list(found.columns)])
    run(Start(path, ROWS).sink().location, Optimize(1), 2**42)
    assert len(DeltaTable(path).file_uris()) == 1
    assert [entry["operation"] for entry in DeltaTable(path).history()].count("OPTIMIZE") > 1 or name != "append"
    staged = {file.name for file in path.glob("part-out-*.parquet")}
    assert name == "append" or not {one for one in staged if f"-i{incarnation}-" not in one}, "left by dead ones"


def _some(child: Child, epochs: int) -> None:
    until(lambda: child.text().count("epoch") >= epochs or child.poll() is not None, "some epochs")


def _last(path: Path) -> int | None:
    if not DeltaTable.is_deltatable(str(path)):
        return None
    return DeltaTable(path).transaction_version("spark_ext:out:0:q")
