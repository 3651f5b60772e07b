"""A job of two queries, and the changes that `docs/change-a-job.md` lists."""

import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

import spark_ext as sx
from spark_ext.errors import SparkExtError
from spark_ext.jobs.job import Job
from spark_ext.spark.session import registry

FILES: Final = list(range(10))
GENERATED: Final = list(range(100, 110))
ALL: Final = FILES + GENERATED  # what the query `copy` writes, each once
SIDE: Final = list(range(100, 104))  # what the query `side` writes, which has finished before the job is stopped

NEVER: Final = "30000 days"
"""Interval between epochs with which a job is left in its first one. Epochs begin at multiples of it, so that with an
hour the second one may follow at once."""


@dataclass
class Lab:
    """A job of two queries in a folder: `copy` reads files and generated rows, `side` generated rows."""

    spark: SparkSession
    folder: Path

    def files(self, uid: str = "files", path: str = "in", **options: Any) -> DataFrame:
        """Ten rows in two files, an epoch each."""
        given = {"max_rows_per_epoch": 5, "readers": 1, **options}
        reader = self.spark.readStream.schema("n bigint").format("files").options(**given)
        return reader.option("uid", uid).option("path", str(self.folder / path)).load()

    def generated(self, uid: str = "rows", rows: int = 10, **options: Any) -> DataFrame:
        """Generated rows from 100 on, five in an epoch."""
        given = {"max_rows_per_epoch": 5, **options}
        reader = self.spark.readStream.format("datagen").option("uid", uid).option("rows", rows).options(**given)
        return reader.load().selectExpr("id + 100 AS n")

    def both(self) -> DataFrame:
        return self.files().union(self.generated())

    def job(
        self, frame: DataFrame | None = None, *, query: str = "copy", sink: str = "out", path: str = "out",
        format: str = "delta_2pc", name: str = "j", state: str = "state", others: Sequence[str] = ("side",),
        options: dict[str, str] | None = None, words: dict[str, Any] | None = None, **settings: Any,
    ) -> Job:  # fmt: skip
        last_first = settings.pop("last_first", False)
        made = sx.Job(self.spark, name, state=self.folder / state, **settings)
        frame = self.both() if frame is None else frame
        writer = frame.writeStream.format(format).option("uid", sink).option("path", str(self.folder / path))
        adds: list[Callable[[], Any]] = []
        if query:
            adds.append(lambda: made.add(query, writer.options(**(options or {})), **(words or {})))
        for other in others:
            rows = self.generated(f"{other}-rows", rows=4).writeStream.format("delta_2pc")
            rows = rows.option("uid", f"{other}-out").option("path", str(self.folder / other))
            adds.append(lambda other=other, rows=rows: made.add(other, rows))  # type: ignore[misc]
        for add in reversed(adds) if last_first else adds:
            add()
        return made

    def rows(self, path: str = "out") -> list[int]:
        there = self.folder / path
        return sorted(DeltaTable(there).to_pandas()["n"].tolist()) if there.exists() else []

    @property
    def checkpoint(self) -> Path:
        return self.folder / "state" / "queries" / "copy" / "checkpoint"


@dataclass(frozen=True)
class Change:
    id: str
    job: Callable[[Lab], Job]  # makes the change, and the job that is started
    stopped: str  # what comes of it when the job was stopped or killed: `continues`, `refused`, `anew` or `left out`
    finished: str  # when it had finished: `stays`, `warns`, `refused`, `anew` or `left out`
    match: str = ""  # what a refusal says
    killed: str = ""  # when it was killed, if that is not as when it was stopped
    rows: Callable[[Lab], list[int]] = Lab.rows  # where the rows are that continue or begin anew
    expected: Sequence[int] = tuple(ALL)


def kept_elsewhere(lab: Lab) -> Job:
    """The input was moved to another folder, and is the same."""
    shutil.move(lab.folder / "in", lab.folder / "moved")
    return lab.job(lab.files(path="moved").union(lab.generated()), words={"accept": ("files.path",)})


def other_files(lab: Lab) -> Job:
    write_files(lab.folder / "other", 1000)
    return lab.job(lab.files(path="other").union(lab.generated()))


def another_setting(lab: Lab) -> Job:
    lab.spark.conf.set("spark.sql.shuffle.partitions", 3)
    return lab.job()


def another_time_zone(lab: Lab) -> Job:
    lab.spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    return lab.job()


def moved_state(lab: Lab) -> Job:
    shutil.move(lab.folder / "state", lab.folder / "elsewhere")
    return lab.job(state="elsewhere")


def copied_state(lab: Lab) -> Job:
    """Both copies are started, the first one to its end."""
    shutil.copytree(lab.folder / "state", lab.folder / "copied")
    assert lab.job(state="copied").run(progress=False).finished
    return lab.job()


def older_state(lab: Lab) -> Job:
    """The state was put back from a backup, after the job had run on. The second start has a number of its own."""
    shutil.copytree(lab.folder / "state", lab.folder / "backup")
    assert lab.job().run(progress=False).finished
    shutil.rmtree(lab.folder / "state")
    shutil.move(lab.folder / "backup", lab.folder / "state")
    with suppress(SparkExtError):
        lab.job().run(progress=False)
    return lab.job()


def without(*parts: str) -> Callable[[Lab], Job]:
    def job(lab: Lab) -> Job:
        for part in parts:
            shutil.rmtree(lab.folder / part)
        return lab.job()

    return job


def without_registry(lab: Lab) -> Job:
    shutil.rmtree(registry.folder_of(lab.spark, ""), ignore_errors=True)
    return lab.job()


def after_reset(lab: Lab) -> Job:
    made = lab.job()
    made.reset("copy")
    return made


def freed(lab: Lab) -> Job:
    """The query was reset, and its operators are in a query of another name."""
    lab.job().reset("copy")
    return lab.job(query="again")


def side_source_in_copy(lab: Lab) -> Job:
    """`side` gets another source, and its own goes to a new query."""
    made = lab.job(others=())
    rows = lab.generated("side-rows", rows=4).writeStream.format("delta_2pc")
    made.add("new", rows.option("uid", "new-out").option("path", str(lab.folder / "new")))
    rows = lab.generated("side-more", rows=4).writeStream.format("delta_2pc")
    return made.add("side", rows.option("uid", "side-out").option("path", str(lab.folder / "side")))


def tuned_renamed_and_moved(lab: Lab) -> Job:
    """All that continues and is not told of, in one start."""
    another_setting(lab)
    another_time_zone(lab)
    without_registry(lab)
    shutil.move(lab.folder / "state", lab.folder / "elsewhere")
    return lab.job(
        lab.files(max_rows_per_epoch=100, readers=3).union(lab.generated()), query="renamed", state="elsewhere",
        options={"compression": "zstd", "commit_attempts": "3"}, words={"renamed_from": "copy"}, last_first=True,
        checkpoint_interval="1 s",
    )  # fmt: skip


def twice(lab: Lab) -> list[int]:
    return sorted(set(lab.rows()))


def refused(id: str, job: Callable[[Lab], Job], match: str) -> Change:
    """Of a query that has finished it is said, and no other one starts with it."""
    return Change(id, job, "refused", "warns", match)


CHANGES: Final = (
    Change("nothing", lambda lab: lab.job(), "continues", "stays"),
    Change("query-renamed", lambda lab: lab.job(query="renamed"), "refused", "refused", "renamed_from='copy'"),
    Change(
        "query-renamed-declared", lambda lab: lab.job(query="renamed", words={"renamed_from": "copy"}), "continues",
        "stays",
    ),
    Change(
        "query-renamed-from-nothing", lambda lab: lab.job(query="renamed", words={"renamed_from": "cpoy"}), "refused",
        "refused", "'cpoy', which this job never had; its queries so far: 'copy', 'side'",
    ),
    Change(
        "query-added", lambda lab: lab.job(others=("side", "more")), "continues", "anew",
        rows=lambda lab: lab.rows() + lab.rows("more"), expected=(*ALL, *SIDE),
    ),
    Change(
        "query-left-out", lambda lab: lab.job(query=""), "refused", "stays",
        "has not finished, and is no longer in the job",
    ),
    Change("query-removed", lambda lab: lab.job(query="").remove("copy"), "left out", "left out"),
    Change("adds-reordered", lambda lab: lab.job(last_first=True), "continues", "stays"),
    refused(
        "sources-reordered",
        lambda lab: lab.job(lab.generated().union(lab.files())),
        "in the order files, rows, and are in the order rows, files",
    ),
    refused("source-path", other_files, "option 'path' of source 'files' was"),
    Change("source-path-accepted", kept_elsewhere, "continues", "warns"),
    refused(
        "source-format",
        lambda lab: lab.job(lab.generated("files").union(lab.generated())),
        "option 'format' of source 'files' was 'files', and is 'datagen'",
    ),
    refused(
        "source-seed",
        lambda lab: lab.job(lab.files().union(lab.generated(seed=7))),
        "option 'seed' of source 'rows' was '0', and is '7'",
    ),
    Change(
        "source-tuned",
        lambda lab: lab.job(lab.files(max_rows_per_epoch=100, readers=3).union(lab.generated())),
        "continues",
        "stays",
    ),
    Change(
        "source-pattern", lambda lab: lab.job(lab.files(pattern="*.parquet").union(lab.generated())), "continues",
        "warns",
    ),
    refused(
        "source-uid",
        lambda lab: lab.job(lab.files("renamed").union(lab.generated())),
        r"source '(files|renamed)' (was|is) not in this query",
    ),
    refused(
        "source-added",
        lambda lab: lab.job(lab.both().union(lab.generated("more"))),
        "source 'more' was not in this query before",
    ),
    refused("source-removed", lambda lab: lab.job(lab.files()), "source 'rows' is no longer in this query"),
    Change(
        "source-moved", side_source_in_copy, "refused", "refused",
        "source 'side-rows' belongs to query 'side', and is now in query 'new'",
    ),
    refused("sink-path", lambda lab: lab.job(path="new"), "option 'path' of sink 'out' was"),
    Change(
        "sink-path-accepted", lambda lab: lab.job(path="new", words={"accept": ("out.path",)}), "continues", "warns",
        "may be in the old place already", killed="refused", rows=lambda lab: sorted(lab.rows() + lab.rows("new")),
    ),
    refused(
        "sink-format",
        lambda lab: lab.job(format="files_2pc"),
        "option 'format' of sink 'out' was 'delta_2pc', and is 'files_2pc'",
    ),
    refused("sink-uid", lambda lab: lab.job(sink="other"), "option 'uid' of sink 'out' was 'out', and is 'other'"),
    Change(
        "sink-tuned", lambda lab: lab.job(options={"compression": "zstd", "commit_attempts": "3"}), "continues", "stays"
    ),
    refused("column-renamed", lambda lab: lab.job(lab.both().selectExpr("n AS m")), "column 'm' .* not in the table"),
    refused("column-added", lambda lab: lab.job(lab.both().selectExpr("n", "n + 1 AS m")), "column"),
    Change(
        "column-added-and-merged",
        lambda lab: lab.job(lab.both().selectExpr("n", "n + 1 AS m"), options={"schema_evolution": "add_columns"}),
        "continues",
        "warns",
    ),
    refused("column-type", lambda lab: lab.job(lab.both().selectExpr("CAST(n AS string) AS n")), "column 'n'"),
    Change("shuffle-partitions", another_setting, "continues", "stays"),
    Change("session-time-zone", another_time_zone, "continues", "stays"),
    Change("job-setting", lambda lab: lab.job(checkpoint_interval="1 s"), "continues", "stays"),
    Change("job-renamed", lambda lab: lab.job(name="k"), "refused", "refused", "belongs to job 'j', not to job 'k'"),
    Change("state-moved", moved_state, "continues", "stays"),
    Change("state-copied", copied_state, "refused", "stays", "started twice, from two copies of its state"),
    Change(
        "checkpoint-deleted",
        without("state/queries/copy/checkpoint"),
        "refused",
        "stays",
        # Of a job that was killed the target alone knows.
        "checkpoint directory (of this query is missing|is not the one in this state)",
    ),
    Change("state-older", older_state, "refused", "stays", "the target is ahead of this state"),
    Change("target-deleted", without("out"), "refused", "stays", "not the target that was claimed"),
    Change("ledger-deleted", without("state/ledger"), "refused", "refused", "no ledger"),
    Change("ledger-table-deleted", without("state/ledger/finished"), "refused", "refused", "ledger table 'finished'"),
    Change("temporary-folders-cleaned", without_registry, "continues", "stays"),
    Change("query-reset", after_reset, "anew", "anew", rows=twice),
    Change("query-reset-and-renamed", freed, "anew", "anew", rows=twice),
)  # fmt: skip

TOGETHER: Final = Change("tuned-renamed-moved", tuned_renamed_and_moved, "continues", "stays")
"""All changes with these two outcomes; each of them alone is tried on the job that was stopped."""

APART: Final = (
    *(it for it in CHANGES if it.id == "nothing" or (it.stopped, it.finished) != (TOGETHER.stopped, TOGETHER.finished)),
    TOGETHER,
)


def write_files(folder: Path, start: int = 0) -> None:
    folder.mkdir()
    for part in range(2):
        low = start + 5 * part
        pq.write_table(pa.table({"n": pa.array(range(low, low + 5), pa.int64())}), folder / f"{part}.parquet")
