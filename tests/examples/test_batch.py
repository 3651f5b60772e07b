"""Programs of the gallery, unchanged, over batch reads in place of streams: the rows that their jobs have written."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import spark_ext as sx
from spark_ext.errors import from_text
from spark_ext.jobs.exchange import Exchange
from spark_ext.script import load_function
from spark_ext.sinks.files_2pc import read
from tests.support.pages import GALLERY
from tests.support.scripts import scripts_undone

SAME = {
    "backfill_then_live": 1, "cdc_to_upsert": 1, "explore_in_batch": 1, "incremental_files": 1, "judge_progress": 2,
    "own_source": 1, "several_outputs": 3, "windows_to_the_end": 1,
}  # fmt: skip
"""How many tables a program's job writes. Of a feed of changes a batch read has the newest version alone."""
REFUSED = ("github_webhooks", "stripe_webhooks")
COLUMNS = {"cdc_to_upsert": ("item", "n")}


@dataclass
class Written:
    """Stands for a writer: what would be written, and the options for where."""

    frame: DataFrame
    options: dict[str, str] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Callable[..., "Written"]:
        if name.startswith("__"):
            raise AttributeError(name)

        def set_(*given: Any, **named: Any) -> "Written":
            self.options |= {"format": given[0]} if name == "format" else dict([given]) if given else named
            return self

        return set_


@pytest.fixture
def in_batch(spark: SparkSession, tmp_path: Path) -> Iterator[Callable[[ModuleType], dict[str, Written]]]:
    def written(program: ModuleType) -> dict[str, Written]:
        """What the queries of a program's job would write, by batch frames."""
        found: dict[str, Written] = {}
        passed: dict[str, DataFrame] = {}

        def add(job: sx.Job, uid: str, query: Any, **named: Any) -> sx.Job:
            if not isinstance(query, Written):
                query = query() if "after" in named else query({})
            found[uid] = query
            return job

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(spark), "readStream", property(lambda session: session.read))
            patch.setattr(type(spark.range(1)), "writeStream", property(Written))
            patch.setattr(sx.Job, "add", add)
            patch.setattr(Exchange, "write", lambda one, frame: passed.setdefault(one.name, frame).writeStream)
            patch.setattr(Exchange, "read", lambda one, uid: passed[one.name])
            program.job(spark)
        return found

    with scripts_undone():
        yield written


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    def run(name: str) -> ModuleType:
        program = sys.modules[load_function(GALLERY / f"{name}.py", "job").__module__]
        monkeypatch.setattr(program, "OUT", tmp_path / name)
        program.main()
        return program

    return run


def shown(frame: DataFrame) -> list[str]:
    return sorted(map(repr, frame.collect()))


@pytest.mark.slow(6, "runs a program of the gallery, with its jobs")
@pytest.mark.parametrize("name", SAME)
def test_a_program_of_the_gallery_has_the_same_rows_in_batch(
    name: str, spark: SparkSession, ran: Callable[[str], ModuleType], in_batch: Callable[..., dict[str, Written]]
) -> None:
    found = [one for one in in_batch(ran(name)).values() if "path" in one.options]
    assert len(found) == SAME[name]
    for one in found:
        path = one.options["path"]
        delta = one.options["format"] == "delta_2pc"
        table = spark.read.format("delta").load(path) if delta else read(spark, path)
        columns = COLUMNS.get(name, table.columns)
        assert one.frame.select(*columns).count() > 0
        assert shown(one.frame.select(*columns)) == shown(table.select(*columns)), path


@pytest.mark.slow(6, "runs a program of the gallery, with its job and gateway")
@pytest.mark.parametrize("name", REFUSED)
def test_what_senders_push_is_read_by_a_job_alone(
    name: str, ran: Callable[[str], ModuleType], in_batch: Callable[..., dict[str, Written]]
) -> None:
    [one] = in_batch(ran(name)).values()
    with pytest.raises(PySparkException) as refused:
        one.frame.collect()
    error = from_text(str(refused.value))
    assert error is not None and "which events are repeats" in error.what and "read the table" in error.do
