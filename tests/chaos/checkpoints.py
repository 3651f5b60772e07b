"""Aligned checkpoints of the diamond at random moments: `python -m tests.chaos.checkpoints --count 50 --restores 8`.

Both outputs as of each checkpoint, of each restore, and at the end, hold exactly the rows that its source had
delivered.
"""

import json
import random
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

import spark_ext as sx
from spark_ext.model.checkpoint_metadata import CheckpointMetadata
from tests.chaos.commands import arguments, generated, verdict, workplace
from tests.chaos.diamond import GENERATED, job

ROWS = 3_000_000  # more than a run reads
TIMEOUT = 600.0  # seconds for one checkpoint


@dataclass(frozen=True)
class Outputs:
    copy: pd.DataFrame
    diamond: pd.DataFrame

    def kind(self, kind: str) -> pd.DataFrame:
        """The rows of the table `diamond` that came by one of its two ways, by key and number."""
        return _sorted(self.diamond[self.diamond["kind"] == kind])


def problems(outputs: Outputs, rows: pd.DataFrame, *, ended: bool) -> Iterator[str]:
    """What is wrong with the outputs if exactly these rows have been read; before the end some windows are missing."""
    wanted = _sorted(pd.DataFrame({"kind": "row", "key": rows["key"], "number": rows["id"]}))
    for name, found in (("copy", _sorted(outputs.copy)), ("diamond", outputs.kind("row"))):
        if not found.equals(wanted):
            yield f"{name}: {len(found)} rows of {len(wanted)} read ones, {int(found.duplicated().sum())} of them twice"
    windows = rows.groupby([rows["ts"].dt.floor("min"), "key"])["id"].sum().reset_index() if len(rows) else rows
    whole = _sorted(pd.DataFrame({"kind": "minute", "key": windows["key"], "number": windows["id"]}))
    found = outputs.kind("minute")
    if ended and not found.equals(whole):
        yield f"diamond: {len(found)} windows of {len(whole)}, or other ones"
    if found.duplicated().any():
        yield "diamond: a window is there twice"
    merged = found.merge(whole, how="left", indicator=True)
    if not ended and not merged["_merge"].eq("both").all():
        yield f"diamond: {int(merged['_merge'].ne('both').sum())} windows that are not those of the rows read"


def _sorted(frame: pd.DataFrame) -> pd.DataFrame:
    typed = frame[["kind", "key", "number"]].astype({"kind": "object", "key": "int64", "number": "int64"})
    return typed.sort_values(["key", "number"], ignore_index=True)


class Trial:
    def __init__(self, folder: Path, chance: random.Random, rows: int = ROWS) -> None:
        self.folder, self.chance, self._rows = folder, chance, rows
        self.taken: list[int] = []

    def job(self) -> sx.Job:
        return job(self.folder, rows=self._rows, retained_checkpoints=1_000, checkpoint_interval="1 hour")

    def _input(self, upto: Mapping[str, int]) -> pd.DataFrame:
        return generated({**GENERATED, "rows": self._rows}, upto).to_pandas()

    @contextmanager
    def running(self, made: sx.Job) -> Iterator[sx.Job]:
        """A job that runs meanwhile, and is stopped before its folder can be deleted."""
        made.start()
        try:
            yield made
        finally:
            made.stop()

    def checkpoint(self, running: sx.Job) -> int:
        time.sleep(self.chance.uniform(0.0, 1.0))
        number = running.checkpoint(TIMEOUT)
        self.taken.append(number)
        return number

    def compare(self, made: sx.Job, number: int) -> list[str]:
        """What differs between the outputs as of a checkpoint and its input."""
        found = made.as_of(number)
        outputs = Outputs(found.read("copy-table").toPandas(), found.read("diamond-table").toPandas())
        rows = made.ledger.checkpoints().where(f"checkpoint_id = {number} and status = 'COMPLETED'")
        newest = rows.orderBy("at", ascending=False).first()
        assert newest is not None
        raw = newest["metadata"]
        metadata = CheckpointMetadata.from_json(raw if isinstance(raw, dict) else json.loads(raw))
        offset = metadata.queries["rows"].sources["generated"].offset
        positions = {} if offset is None else {name: int(one.at) for name, one in offset.running.items()}
        return [f"checkpoint {number}: {problem}" for problem in problems(outputs, self._input(positions), ended=False)]

    def compare_end(self) -> list[str]:
        """What differs between the tables and the input of a job that was drained."""
        spark = sx.session("chaos")
        copy, diamond = (
            spark.read.format("delta").load(str(self.folder / name)).toPandas() for name in ("copy", "diamond")
        )
        whole = self._input(dict.fromkeys("012", 1 + len(copy)))
        read = whole[whole["id"].isin(copy["number"])]
        return [f"the end: {problem}" for problem in problems(Outputs(copy, diamond), read, ended=True)]


def run(folder: Path, count: int, restores: int, seed: int) -> list[str]:
    """Take checkpoints, compare each with the input, and restore some of them; returns what was wrong."""
    chance = random.Random(seed)
    trial = Trial(folder, chance)
    with trial.running(trial.job()) as made:
        for _ in range(count):
            trial.checkpoint(made)
    wrong = [problem for number in trial.taken for problem in trial.compare(made, number)]
    print(
        f"{len(trial.taken)} aligned checkpoints, {made.snapshot().rows} rows read: {wrong or 'each equals its input'}"
    )
    for number in chance.sample(trial.taken, restores):
        made = trial.job().restore(number)
        found = trial.compare(made, number)
        with trial.running(made):
            later = trial.checkpoint(made)
        found += trial.compare(made, later)
        print(f"restored from {number}, and continued to {later}: {found or 'equal'}", flush=True)
        wrong += found
    with trial.running(trial.job()) as made:
        made.drain(TIMEOUT)
    wrong += trial.compare_end()
    return wrong


def main() -> int:
    given = arguments("checkpoints", count=(50, "checkpoints"), restores=(8, "restores")).parse_args()
    with workplace("checkpoints", given.keep) as folder:
        wrong = run(folder, given.count, given.restores, given.seed)
    said = verdict(wrong, "all outputs reflect the same input rows, and the end is exact")
    print(f"{given.count} aligned checkpoints, {given.restores} restores, seed {given.seed}: {said}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
