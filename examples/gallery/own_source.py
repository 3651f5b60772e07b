"""A source of your own in some thirty lines: a folder of notes, each of which is read once.

A source says which channels there are, how far one may be read, and how a range of one is read. Offsets, limits,
restarts, the end and exactly-once delivery are done for it. `docs/testing.md` tests it as those of this package.

    python examples/gallery/own_source.py
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

import spark_ext as sx
from spark_ext.sources.contract import Advance, Channel, ChannelSource, Limit, SourceOptions

OUT = Path("out/gallery/own_source")


class NotesOptions(SourceOptions):
    folder: str


class Notes(ChannelSource):
    """Each file is a channel; the position is the number of lines that were read."""

    options_type = NotesOptions
    options: NotesOptions

    @classmethod
    def name(cls) -> str:
        return "notes"

    def schema(self) -> str:
        return "note string, line int, text string"

    def discover(self) -> list[Channel]:
        return [Channel(path.name, begin=0) for path in sorted(Path(self.options.folder).glob("*.txt"))]

    def advance(self, channel: Channel, start: int, limit: Limit) -> Advance:
        lines = len(self._lines(channel))
        end = lines if limit.rows is None else min(lines, start + limit.rows)
        return Advance(end, finished=end == lines, rows=end - start)

    def read(self, channel: Channel, start: int, end: int) -> Iterator[pa.RecordBatch]:
        lines = self._lines(channel)[start:end]
        rows = [{"note": channel.id, "line": start + n, "text": text} for n, text in enumerate(lines)]
        types = pa.schema([("note", pa.string()), ("line", pa.int32()), ("text", pa.string())])
        yield pa.RecordBatch.from_pylist(rows, schema=types)

    def _lines(self, channel: Channel) -> list[str]:
        return (Path(self.options.folder) / channel.id).read_text().splitlines()


def job(spark: SparkSession) -> sx.Job:
    sx.register(spark, Notes)
    notes = spark.readStream.format("notes").options(uid="notes", folder=str((OUT / "notes").resolve())).load()
    table = notes.writeStream.format("delta_2pc").option("uid", "notes-table").option("path", str(OUT / "table"))
    return sx.Job(spark, "notes", state=OUT / "state").add("copy", table)


def main() -> None:
    shutil.rmtree(OUT, ignore_errors=True)
    (OUT / "notes").mkdir(parents=True)
    (OUT / "notes" / "monday.txt").write_text("buy tea\ncall the bank\n")
    (OUT / "notes" / "tuesday.txt").write_text("fix the bicycle\n")
    spark = sx.session("own-source")
    job(spark).run(progress=False)
    again = job(spark).run(progress=False)

    print(f"a further run reads {again.rows} rows")
    spark.read.format("delta").load(str(OUT / "table")).orderBy("note", "line").show(truncate=False)


if __name__ == "__main__":
    main()
