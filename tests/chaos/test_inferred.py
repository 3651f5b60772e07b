"""Columns that files add, and bad files, under `kill -9` of the process that loads, plans, reads and commits.

Without Spark, so that it is killed dozens of times in a minute, also while columns are being kept. A series with Spark:
`python -m tests.chaos.repeated --source inferred`.
"""

import json
import multiprocessing
import random
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from spark_ext.model.offsets import SourceOffset, ranges
from spark_ext.sources.contract import BadRow, Channel
from spark_ext.sources.files.lines import NewColumns
from spark_ext.sources.files.source import Files
from spark_ext.sources.runtime.planner import NoLedger, Planner
from tests.chaos.repeated import Messy, row

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(3600)]
KILLS = 40
AGAIN = 3  # exit code: a column came after the load


def write(path: Path, value: Any) -> None:
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(value))
    draft.rename(path)


class Run:
    """Epochs whose offsets are logged before they are read, and whose rows are committed by a rename."""

    def __init__(self, folder: Path, options: dict[str, str]) -> None:
        self._folder, self._source = folder, Files(options)
        self._source.declared = self._source.schema()
        self._planner = Planner(self._source, None, NoLedger())

    def _offset(self, number: int) -> SourceOffset:
        path = self._folder / f"{number}.offset"
        return SourceOffset.from_json(json.loads(path.read_text()), "in") if number else SourceOffset("in")

    def to_end(self) -> None:
        number = len(list(self._folder.glob("*.offset")))
        while True:
            if number and not (self._folder / f"{number}.rows").exists():
                self._commit(number)
            at = self._offset(number)
            end = self._planner.next(at)
            if end is at:
                return
            number += 1
            write(self._folder / f"{number}.offset", end.to_json())

    def _commit(self, number: int) -> None:
        bad, rows = list[BadRow](), list[dict[str, Any]]()
        self._source._collect = bad.append
        for piece in ranges(self._offset(number - 1), self._offset(number)):
            channel = Channel(piece.channel, None, piece.data)
            for batch in self._source.read(channel, piece.start, piece.end):
                rows += batch.drop_columns(["at"]).to_pylist()
        write(self._folder / f"{number}.rows", {"rows": rows, "bad": [one.position for one in bad]})


def work(folder: Path, options: dict[str, str]) -> None:
    try:
        Run(folder, options).to_end()
    except NewColumns:
        sys.exit(AGAIN)


def test_each_row_comes_once_with_all_its_columns(tmp_path: Path) -> None:
    context, drawn = multiprocessing.get_context("forkserver"), random.Random(7)
    context.set_forkserver_preload([__name__])
    inlet, log, known, kills, usual = Messy(tmp_path / "in"), tmp_path / "log", 1, 0, 0.0
    log.mkdir()
    options = {
        "uid": "in", "header": "true", "watch": "true", "infer": "true", "schema_evolution": "add_columns",
        "on_bad_row": "quarantine", "on_bad_file": "quarantine", "max_rows_per_epoch": "7", **inlet.options,
    }  # fmt: skip

    def add() -> None:
        nonlocal known
        count = drawn.choice([1, 3, 9])
        inlet.add([row(number) for number in range(known, known + count)])
        known += count

    code = None
    while kills < KILLS or code != 0:
        if kills < KILLS:
            add()
        process, began = context.Process(target=work, args=(log, options)), time.monotonic()
        process.start()
        if kills < KILLS and drawn.random() < 0.3:
            add()
        process.join(drawn.uniform(0, usual) if kills < KILLS and usual else None)
        if process.exitcode is None:
            process.kill()
            kills += 1
            process.join()
        else:
            usual = time.monotonic() - began
        code = process.exitcode
        assert code in (0, AGAIN, -9)
    found = [json.loads(path.read_text()) for path in log.glob("*.rows")]
    rows, aside = [one for part in found for one in part["rows"]], [one for part in found for one in part["bad"]]
    assert inlet.differences(rows, aside) == []
    kept = json.loads((tmp_path / "schema.json").read_text())
    assert len(kept["optional"]) > 10 and len(aside) > 10
    print(f"{kills} kills, {len(rows)} rows, {len(aside)} aside, {len(kept['columns'])} columns")
