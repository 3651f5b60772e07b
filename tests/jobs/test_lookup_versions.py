"""The versions of a job's lookups, as its driver fixes, checks and reloads them: over a ledger, without Spark."""

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from spark_ext.control.log import ControlLog
from spark_ext.control.requests import Accepted, ControlRefused, Request
from spark_ext.errors import ConfigurationError, SparkExtError, StateError
from spark_ext.jobs.controlling.lookup_versions import LookupVersions
from spark_ext.jobs.lookup import Lookup
from spark_ext.model.control import JOB, Event
from tests.control.states import State


class Job:
    """A job with the lookup `names`; `start` is the driver's part of a start."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "names")
        self.state = State(folder / "state", "lab", ("q",))
        self.log = ControlLog(self.state.ledger, self.state.incarnation.fence)
        self.write("a")

    def write(self, name: str, mode: Any = "overwrite", code: str = "A", **more: Any) -> int:
        write_deltalake(
            self.path,
            pa.table({"code": [code], "name": [name], **more}),
            mode=mode,
            schema_mode="overwrite" if mode == "overwrite" else None,
        )
        return self.table.version()

    @property
    def table(self) -> DeltaTable:
        return DeltaTable(self.path)

    @property
    def value(self) -> Any:
        return self.log.configuration().of("lookup_version", JOB, "names")

    def declared(self, **given: Any) -> Lookup:
        options = {
            "columns": None,
            "key": ("code",),
            "max_bytes": "1 MB",
            "version": self.value and self.value["version"],
        }
        return Lookup.declared("lab", "names", self.path, **{**options, **given})

    def start(self, *left: Event, **given: Any) -> LookupVersions:
        found = LookupVersions("lab", self.log, {"names": self.declared(**given)})
        found.begin(left, {"q": f"{self.state.path}/queries/q/checkpoint"})
        return found

    def asked(self, version: int | None = None, lookup: str = "names", **more: Any) -> Event:
        value = {"lookup": lookup} if version is None else {"lookup": lookup, "version": version}
        (found,) = self.log.accept([Request("reload", "job", value, **more)])
        if isinstance(found, ControlRefused):
            raise found
        assert isinstance(found, Accepted)
        return found.event


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def test_the_first_start_fixes_the_newest_version_and_later_ones_keep_it(job: Job) -> None:
    job.start()
    first = job.value
    assert first == {"lookup": "names", "version": 0, "table": str(job.table.metadata().id), "path": job.path}
    job.write("b")
    versions = job.start()
    versions.fix()
    assert job.value == first and job.log.configuration().sequence == 1, "no further event"


def test_a_reload_is_obeyed_once_whoever_dies_between(job: Job) -> None:
    versions = job.start()
    newest = job.write("b")
    event = job.asked()
    versions.reload(event)
    job.write("c")
    job.start(event).reload(event)
    assert job.value["version"] == newest and job.value["event_id"] == event.event_id
    versions.reload(job.asked(0))
    assert job.value["version"] == 0, "an earlier version may be named"


def test_an_aligned_reload_waits_for_its_barrier(job: Job) -> None:
    versions = job.start()
    job.write("b")
    versions.reload(job.asked(delivery="aligned"))
    (held,) = job.log.configuration().aligned.values()
    assert (held["kind"], held["value"]["version"], job.value["version"]) == ("lookup_version", 1, 0)


def test_a_reload_of_what_is_not_there_is_refused_and_nothing_changes(job: Job) -> None:
    with pytest.raises(ControlRefused, match="no lookup 'names'"):
        job.asked()
    versions = job.start()
    with pytest.raises(ControlRefused, match="no lookup 'other'") as refused:
        job.asked(lookup="other")
    assert refused.value.do == "name one of: names"
    before = job.value
    with pytest.raises(StateError, match=r"version 7 of .* cannot be used"):
        versions.reload(job.asked(7))
    job.write("b", "append")
    with pytest.raises(StateError, match=r"several rows of version 1 .*'code': 'A'"):
        versions.reload(job.asked())
    job.write("x" * 2_000_000)
    with pytest.raises(StateError, match="larger than max_bytes, 1048576 bytes"):
        versions.reload(job.asked())
    write_deltalake(job.path, pa.table({"code": [1], "name": ["a"]}), mode="overwrite", schema_mode="overwrite")
    with pytest.raises(StateError, match="column 'code' is declared as string, but has the type bigint"):
        versions.reload(job.asked())
    shutil.rmtree(job.path)
    with pytest.raises(StateError, match="not a Delta table"):
        versions.reload(job.asked())
    assert job.value == before


def test_columns_that_come_later_are_not_seen_before_the_next_declaration(job: Job) -> None:
    versions = job.start()
    job.write("b", more=pa.array([1]))
    versions.reload(job.asked())
    assert job.value["version"] == 1
    assert job.declared().schema.names == ["code", "name", "more"]
    versions.reload(job.asked(0))
    with pytest.raises(StateError, match="column 'more' is declared as bigint, but is not in the table") as refused:
        job.start(version=1)
    assert "columns=" in refused.value.do
    job.start(version=1, columns=("code", "name"))


@pytest.mark.parametrize("how", ["vacuumed", "replaced"])
def test_a_version_that_is_gone_is_refused_before_the_start_until_it_is_reloaded(job: Job, how: str) -> None:
    job.start()
    if how == "vacuumed":
        job.write("b")
        job.table.vacuum(0, enforce_retention_duration=False, dry_run=False)
    else:
        shutil.rmtree(job.path)
        job.write("b")
    with pytest.raises(StateError, match="no longer exists" if how == "vacuumed" else "another one was created"):
        job.start()
    with pytest.raises(StateError) as refused:
        job.start()
    assert "spark-ext control STATE reload names" in refused.value.do
    job.start(job.asked())
    assert job.value["table"] == str(job.table.metadata().id) and job.value["version"] == job.table.version()


def test_an_interrupted_epoch_needs_its_version(job: Job) -> None:
    versions = job.start()
    job.state.epoch("q", 0, job.log.configuration())
    job.write("b")
    versions.reload(job.asked())
    job.start()
    shutil.copytree(job.path, f"{job.path}-backup")
    job.table.vacuum(0, enforce_retention_duration=False, dry_run=False)
    with pytest.raises(StateError, match=r"version 0 of .* no longer exists") as refused:
        job.start()
    assert "from a backup" in refused.value.do
    shutil.copytree(f"{job.path}-backup", job.path, dirs_exist_ok=True)
    job.start()
    job.table.vacuum(0, enforce_retention_duration=False, dry_run=False)
    (job.state.folder / "queries/q/checkpoint/commits").mkdir()
    (job.state.folder / "queries/q/checkpoint/commits/0").write_text("v1\n{}")
    job.start()


def test_a_table_that_was_moved_is_the_same_one(job: Job) -> None:
    job.start()
    before = job.value
    shutil.move(job.path, f"{job.path}-2")
    job.path += "-2"
    job.start()
    assert job.value == {**before, "path": job.path}


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"columns": ("code", "no")}, "column 'no' is not among code, name"),
        ({"columns": ("code", "code")}, "column 'code' is named twice"),
        ({"columns": ("name",)}, "column 'code' is not in the lookup"),
        ({"max_bytes": "many"}, "max_bytes"),
        ({"key": ("price",)}, "column 'price' is not in the lookup"),
    ],
)
def test_a_declaration_is_checked(job: Job, given: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigurationError, match=what):
        job.declared(**given)


def test_a_declaration_needs_a_table_and_a_name(job: Job, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be a lookup's name"):
        Lookup.declared("lab", "a b", job.path, columns=None, key=(), max_bytes=1, version=None)
    with pytest.raises(ConfigurationError, match="not a Delta table") as refused:
        Lookup.declared("lab", "names", str(tmp_path / "no"), columns=None, key=(), max_bytes=1, version=None)
    assert "after=" in refused.value.do
    job.write("a", price=pa.array([1.5]))
    with pytest.raises(ConfigurationError, match="column 'price' is double"):
        job.declared(key=("price",))
    with pytest.raises(SparkExtError, match="its key has 0 columns"):
        job.declared(key=()).get("A")
