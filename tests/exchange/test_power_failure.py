"""What the kind `arrow` has synced to disk when an entry can be acted on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from spark_ext.exchange.arrow import arrow_parts
from spark_ext.exchange.arrow.log import ArrowLog
from spark_ext.exchange.descriptor import Descriptor
from spark_ext.exchange.entries import LogState
from spark_ext.model.commits import Task
from spark_ext.schemas.ddl import columns
from tests.exchange.test_log import epoch
from tests.support.recording import Recording


def test_rows_and_folders_are_synced_before_the_entry_is(tmp_path: Path) -> None:
    folder = Recording(tmp_path / "x")
    parts = arrow_parts(folder, "e")
    parts.master.register(Descriptor("e", "0", "j", "arrow", 1, (), columns("id int").jsonValue()))
    assert folder.noted() == ["sync .", "sync draft", "link x/exchange.json", "sync x"]
    rows = pa.RecordBatch.from_pydict({"id": pa.array([1, 2], pa.int32())})
    for number, made in enumerate((["sync x"], [])):
        segment = parts.writer.write(iter([(rows, [0, 0])]), Task("s", "q", number, 0, 7, 3, 0), 1)
        assert segment is not None
        assert folder.noted() == [*made, f"sync x/data/{segment.name}", "sync x/data"]
        state = parts.master.log.append(lambda state, one=segment: replace(epoch(state), segments=(one,)), "1")  # type: ignore[misc]
        assert state is not None and state.last == number
        assert folder.noted() == [*made, "sync draft", f"link x/log/{number:020}.json", "sync x/log"]


def test_a_state_is_synced_before_the_entries_below_it_go(tmp_path: Path) -> None:
    folder = Recording(tmp_path / "log")
    log = ArrowLog(folder, "e", span=2)
    for _ in range(2):
        log.append(epoch, "1")
    assert folder.noted()[-3:] == ["sync draft", f"replace log/state-{1:020}.json", "sync log"]
    log.seed(LogState(last=1), {1: log.entry(1)}, "1")  # type: ignore[dict-item]
    assert folder.noted() == [], "nothing is missing"
