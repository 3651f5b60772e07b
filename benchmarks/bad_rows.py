"""What it costs to collect bad rows where there are none: a CSV file read with `quarantine` and with `fail`.

The rows are read by the reader of a task, in this process, in turns; the figure is CPU time. What a file costs in which
one line in ten thousand is bad is measured beside it.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

from benchmarks._figures import Aim, Figure, Sample
from benchmarks._spark import workplace
from spark_ext.bad_rows.collector import Destination
from spark_ext.bad_rows.names import key_of
from spark_ext.model.offsets import Range, SourceOffset
from spark_ext.schemas.ddl import columns
from spark_ext.sources.files.source import Files
from spark_ext.sources.runtime.reader import ChannelReader, ReadTask

ROUNDS = 15
ROWS = 1_000_000
BAD_EVERY = 10_000
SIDES = {"fail": ("good", "fail"), "quarantine": ("good", "quarantine"), "one in 10,000": ("bad", "quarantine")}


def run(rounds: int = ROUNDS) -> list[Figure]:
    """Measure this many rounds."""
    rates: dict[str, list[float]] = {side: [] for side in SIDES}
    with workplace() as folder:
        for name, every in (("good", ROWS + 1), ("bad", BAD_EVERY)):
            (folder / name).mkdir()
            lines = (f"{n if (n + 1) % every else 'x'},{n * 0.5},key-{n % 1000}\n" for n in range(ROWS))
            (folder / name / "0.csv").write_text("".join(lines))
        for round_ in range(rounds + 1):
            for side, (name, on_bad_row) in SIDES.items():
                rate = _rate(folder, name, on_bad_row)
                if round_:  # the first round fills caches
                    rates[side].append(rate)
    samples = {side: Sample.of(values, "M rows/s") for side, values in rates.items()}
    return [
        Figure(
            "bad_rows",
            "bad_rows",
            "rows per second of CPU from a CSV file without bad rows: collecting them / failing on them",
            samples["quarantine"].median / samples["fail"].median,
            Aim(">=", 0.98),
            samples,
            {"rows": ROWS},
        )
    ]


def _rate(folder: Path, name: str, on_bad_row: str) -> float:
    """Millions of rows per second of CPU."""
    schema = columns("id bigint, value double, tag string")
    source = Files({"uid": "in", "path": str(folder / name), "on_bad_row": on_bad_row})
    reader = ChannelReader(source, schema)
    [channel] = source.discover()
    end = SourceOffset("in", 1)
    state = str(folder / "state")
    to = Destination(state, str(folder / "checkpoint"), "in", f"{state}/table", 1, key_of(end), 1)
    piece = Range(channel.id, channel.data, 0, channel.data[0])
    task = ReadTask((piece,), bad_rows=to if on_bad_row == "quarantine" else None)
    _logged(folder / "checkpoint", end)
    began = time.process_time()
    rows = sum(batch.num_rows for batch in reader.read(task))
    spent = time.process_time() - began
    if rows < ROWS * 0.99:
        raise AssertionError(f"{rows} rows were read")
    return ROWS / spent / 1e6


def _logged(checkpoint: Path, end: SourceOffset) -> None:
    """A checkpoint with one epoch, in which a task that runs outside of Spark finds its number."""
    (checkpoint / "offsets").mkdir(parents=True, exist_ok=True)
    (checkpoint / "offsets" / "0").write_text("\n".join(["v1", "{}", json.dumps(end.to_json())]))
