"""What the tests of `delta_2pc` share: a sink driven as the base would drive it, without Spark."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql.types import StructType
from typing_extensions import Self

from spark_ext.datafiles.writer import DataFile
from spark_ext.schemas.arrow import arrow_schema
from spark_ext.schemas.ddl import columns
from spark_ext.sinks.contract import Claim, CommitOutcome, Epoch, Task
from spark_ext.sinks.delta_2pc import DeltaTwoPhaseCommit
from spark_ext.testing.sink_driver import numbered as numbered

UID = "out"


def ddl(text: str) -> StructType:
    """As `columns`; `decimal` is one of money, and `not` means that a column may not be null."""
    return columns(text.replace("decimal", "decimal(12,2)").replace(" not", " not null"))


NUMBERS = ddl("id long, name string")


def rows(schema: StructType, values: Sequence[Mapping[str, Any]]) -> list[pa.RecordBatch]:
    return pa.Table.from_pylist([dict(row) for row in values], schema=arrow_schema(schema)).to_batches()


@dataclass
class Driver:
    """One incarnation's use of a sink. The sink object is built anew for each call, as Spark does it."""

    path: Path | str
    schema: StructType = field(default_factory=lambda: NUMBERS)
    incarnation: int = 1
    query_id: str = "q"
    job_id: str = "job-1"
    uid: str = UID
    options: Mapping[str, str] = field(default_factory=dict)

    def sink(self) -> DeltaTwoPhaseCommit:
        return DeltaTwoPhaseCommit({"uid": self.uid, "path": str(self.path), **self.options})

    def claim(self, schema: bool = True) -> Self:
        sink = self.sink()
        if schema:
            sink.validate(self.schema)
        sink.claim(Claim(self.uid, "job", self.job_id, self.incarnation, 0))
        return self

    def write(
        self, epoch: int, values: Iterable[Mapping[str, Any]], partition: int = 0, attempt: int = 0
    ) -> tuple[DataFile, ...] | None:
        task = Task(self.uid, self.query_id, epoch, partition, attempt, self.incarnation, 0)
        return self.sink().write(self.schema, iter(rows(self.schema, list(values))), task)

    def commit(self, epoch: int, *prepared: tuple[DataFile, ...] | None) -> CommitOutcome:
        identity = Epoch(self.uid, 0, self.query_id, epoch, self.incarnation)
        return self.sink().commit(self.schema, identity, [files for files in prepared if files])

    def run(self, epoch: int, values: Iterable[Mapping[str, Any]]) -> CommitOutcome:
        return self.commit(epoch, self.write(epoch, values))


@dataclass
class Start(Driver):
    lineage: int = 0

    @property
    def start(self) -> int:
        return 70 + self.incarnation

    def epoch(self, number: int, previous: int | None = None) -> Epoch:
        mine = (self.uid, self.lineage, self.query_id, number, self.incarnation)
        return Epoch(*mine, start=self.start, previous=previous)

    def begin(self, previous: int | None = None, planned: int = 9) -> None:
        sink = self.sink()
        sink.validate(self.schema)
        mine = Claim(self.uid, "job", self.job_id, self.incarnation, self.lineage, start=self.start)
        sink.claim(replace(mine, query_id=self.query_id, planned=planned, previous=previous))

    def put(self, number: int, previous: int | None = None, rows: list[dict[str, Any]] | None = None) -> CommitOutcome:
        files = self.write(number, rows or numbered(number, number + 1))
        assert files is not None
        return self.sink().commit(self.schema, self.epoch(number, previous), [files])


@dataclass
class Restore(Start):
    """A start that restores a savepoint in place, or continues what was restored: a driver of a later lineage."""

    lineage: int = 1
    incarnation: int = 2

    @property
    def its_claim(self) -> Claim:
        mine = (self.uid, "job", self.job_id, self.incarnation, self.lineage)
        return Claim(*mine, start=self.start, query_id=self.query_id, restoring=True)

    def take(self) -> None:
        self.sink().claim(self.its_claim)

    def restore(self, position: Any) -> None:
        """As a job does it: nothing is claimed before all targets have agreed."""
        self.sink().check_roll_back(self.its_claim, position)
        self.take()
        self.sink().roll_back(self.its_claim, position)


def begun(path: Path | str, *numbers: int, **options: str) -> Start:
    """The first start of a job, with these epochs committed: one row each, with the epoch's number as its id."""
    driver = Start(path, options=options)
    driver.begin()
    for number in numbers:
        driver.put(number)
    return driver


def table(path: Path | str) -> pa.Table:
    return pa.table(DeltaTable(str(path)).to_pyarrow_table())


def ids(path: Path | str) -> list[int]:
    return sorted(table(path).column("id").to_pylist())


def data_files(path: Path) -> set[str]:
    return {str(file.relative_to(path)) for file in path.rglob("*.parquet") if "_delta_log" not in file.parts}


def live_files(path: Path) -> set[str]:
    return {str(Path(uri).relative_to(path)) for uri in DeltaTable(path).file_uris()}
