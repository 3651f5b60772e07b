"""Runs with `until="now"` that find nothing new: what they write into targets, and whom they leave able to write."""

import shutil
from collections.abc import Callable
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.readwriter import DataStreamWriter

import spark_ext as sx
from spark_ext.delta.sink_table import Target
from spark_ext.errors import JobFailedError
from spark_ext.jobs.result import JobResult
from spark_ext.model.identity import OPTION, Identity
from spark_ext.model.lifecycle import State
from spark_ext.sinks.files_2pc import folder
from spark_ext.sinks.postgres_2pc import record
from spark_ext.spark.session import registry
from spark_ext.spark.session.registry import Registration
from tests.servers.postgres import Database
from tests.support.jobs import JobHarness

_IMPORTED = (Target, folder, record)
"""Workers would import them at the same time, and in several threads CPython 3.11 cannot parse them for pytest."""


class Targets:
    """A job over a file that says how many rows there are, into a table, a folder and a database."""

    def __init__(self, lab: JobHarness, database: Database) -> None:
        self._lab = lab
        self._database = database
        self._given: dict[str, dict[str, str]] = {
            "delta_2pc": {"path": str(lab.folder / "table")},
            "files_2pc": {"path": str(lab.folder / "files"), "format": "parquet"},
            "postgres_2pc": {"dsn": database.dsn, "table": "numbers"},
        }

    def run(self, rows: int) -> JobResult:
        lab = self._lab
        (lab.folder / "count").write_text(str(rows))
        job = sx.Job(lab.spark, "lab", state=lab.folder / "state")
        for sink, options in self._given.items():
            reader = lab.spark.readStream.format("growing").options(uid=f"in-{sink}", path=str(lab.folder / "count"))
            job.add(sink, reader.load().writeStream.format(sink).options(uid=sink, **options))
        return job.run(until="now", progress=False)

    def rows(self) -> list[int]:
        table = DeltaTable(self._lab.folder / "table").to_pyarrow_table()["n"].to_pylist()
        files = [one.n for one in self._lab.spark.read.parquet(str(self._lab.folder / "files")).collect()]
        assert sorted(table) == sorted(files) == self._database.column("SELECT n FROM numbers ORDER BY n")
        return sorted(table)

    def written(self) -> list[Any]:
        """What any commit changes: the table's version, the folder's log, and the transaction of the sink's row."""
        log = sorted((self._lab.folder / "files" / "_epochs").rglob("*"))
        row = self._database.rows("SELECT xmin::text, * FROM spark_ext.sinks WHERE sink = 'postgres_2pc'")
        return [DeltaTable(self._lab.folder / "table").version(), [str(path) for path in log], row]

    def incarnations(self) -> list[Any]:
        fence = DeltaTable(self._lab.folder / "table").transaction_version("fence:delta_2pc")
        return [fence, *self._database.column("SELECT incarnation FROM spark_ext.sinks WHERE sink = 'postgres_2pc'")]


@pytest.mark.core
def test_runs_that_find_nothing_new_write_nothing(lab: JobHarness, database: Database) -> None:
    targets = Targets(lab, database)
    assert targets.run(3).caught_up
    before = targets.written()
    for _ in range(2):
        idle = targets.run(3)
        assert (idle.state, idle.epochs) == (State.SUSPENDED, 0)
    assert targets.written() == before
    assert targets.incarnations() == [1, 1]
    assert targets.run(5).rows == 6
    assert targets.rows() == [0, 1, 2, 3, 4]
    assert targets.incarnations() == [4, 4], "claimed before its first epoch"


class Table:
    """A job over a file that says how many rows there are, into a table."""

    def __init__(self, lab: JobHarness) -> None:
        self._lab = lab
        self.state = lab.folder / "state"
        self._path = str(lab.folder / "out")

    def _writer(self, rows: int) -> DataStreamWriter:
        (self._lab.folder / "count").write_text(str(rows))
        reader = self._lab.spark.readStream.format("growing")
        frame = reader.options(uid="in", path=str(self._lab.folder / "count")).load()
        return frame.writeStream.format("delta_2pc").options(uid="out", path=self._path)

    def run(self, rows: int) -> JobResult:
        job = sx.Job(self._lab.spark, "lab", state=self.state)
        return job.add("q", self._writer(rows)).run(until="now", progress=False)

    def older(self) -> Callable[[int], None]:
        """An older driver, without its coordinator: the start that has claimed the table last."""
        table, checkpoint = DeltaTable(self._path), str(self._lab.checkpoint())
        number, start, lineage = (table.transaction_version(f"{name}:out") for name in ("fence", "start", "lineage"))
        assert number is not None and start is not None and lineage is not None
        job_id = self._lab.ledger.jobs()[0].job_id
        mine = Identity("lab", job_id, "q", str(self.state), checkpoint, lineage, number, start)

        def write(rows: int) -> None:
            about = ("lab", job_id, "q", mine.state, checkpoint, number, lineage, start)
            known = [Registration("in", "source", *about), Registration("out", "sink", *about)]
            place = registry.folder_of(self._lab.spark, "")
            registry.publish(known, place)
            writer = self._writer(rows).option("checkpointLocation", checkpoint).option(OPTION, mine.encode())
            try:
                writer.trigger(availableNow=True).start().awaitTermination()
            finally:
                registry.withdraw(["in", "out"], place)

        return write

    def rows(self) -> list[int]:
        return sorted(DeltaTable(self._path).to_pyarrow_table()["n"].to_pylist())


def test_a_target_ahead_is_refused_by_the_first_run_that_writes(lab: JobHarness) -> None:
    table, copy = Table(lab), lab.folder / "copy"
    table.run(2)
    shutil.copytree(table.state, copy)
    table.run(4)
    shutil.rmtree(table.state)
    copy.rename(table.state)
    assert table.run(2).caught_up
    with pytest.raises(JobFailedError, match="ahead of this state"):
        table.run(4)
    assert table.rows() == [0, 1, 2, 3]


@pytest.mark.core
def test_an_older_driver_beside_an_idle_newer_one_loses(lab: JobHarness) -> None:
    table = Table(lab)
    table.run(2)
    older = table.older()
    assert table.run(2).epochs == 0
    older(3)
    assert table.rows() == [0, 1, 2], "nobody has claimed the table since"
    assert table.run(5).rows == 2
    with pytest.raises(StreamingQueryException, match="incarnation 3 of the job has been started"):
        older(6)
    assert table.run(6).caught_up
    assert table.rows() == [0, 1, 2, 3, 4, 5]
