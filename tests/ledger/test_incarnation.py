import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark.sql.types import StructType

from spark_ext.errors import FencedError, JobRunningError, StateError
from spark_ext.jobs.restoring.restore_targets import interrupted_restores
from spark_ext.ledger import Incarnation, Ledger, LedgerWriter, start_incarnation
from spark_ext.ledger import incarnation as module
from spark_ext.ledger.heartbeat import Heartbeat
from spark_ext.ledger.identity import job_row
from spark_ext.ledger.schema import ROWS
from spark_ext.model.identity import OPTION, Identity
from spark_ext.sinks.runtime.writer import EpochWriter
from spark_ext.sources.runtime.planner import NoLedger, Planner
from spark_ext.sources.runtime.reader import ChannelReader
from spark_ext.sources.runtime.stream_reader import ReadAllAvailable
from spark_ext.spark.session import registry
from tests.ledger.rows import START, epoch, line, process
from tests.sources.memory import Store, memory, registration
from tests.support.operators import PatientFolder
from tests.support.waiting import until

DRIVER = """
ledger = Ledger(uri)
own = start_incarnation(ledger, "j", jvm_pid=int(sys.argv[2]) if len(sys.argv) > 2 else None)
writer = LedgerWriter(ledger, own)
writer.append(epoch(own.number))
say(f"started {own.number}")
sys.stdin.readline()
try:
    writer.append(epoch(100 + own.number))
    say("appended")
except SparkExtError as problem:
    say(problem.code)
"""


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(str(tmp_path / "state"))


def end(ledger: Ledger, incarnation: Incarnation) -> None:
    LedgerWriter(ledger, incarnation).end("FINISHED")


def again(ledger: Ledger, **given: Any) -> Incarnation:
    return start_incarnation(Ledger(ledger.uri), "j", **given)


def proceed(*drivers: subprocess.Popen[str]) -> None:
    for driver in drivers:
        assert driver.stdin is not None
        print(file=driver.stdin, flush=True)


@pytest.fixture(autouse=True)
def forget_all() -> Iterator[None]:
    """What a test leaves running in this process is not running for the next."""
    before = set(module._running)
    yield
    module._running.intersection_update(before)


def test_starts_are_numbered_and_fence_all_tables(ledger: Ledger) -> None:
    first = start_incarnation(ledger, "j", application_id="app", jvm_pid=7, now=START)
    end(ledger, first)
    second = again(ledger)
    assert (first.number, first.lineage, first.older) == (1, 1, "")
    assert (second.number, second.lineage, second.older, second.job_id) == (2, 1, "", first.job_id)
    started, ended, _ = ledger.jobs()
    assert (started.event, started.at, started.application_id, started.jvm_pid) == ("started", START, "app", 7)
    assert (ended.event, ended.incarnation, ended.reason) == ("ended", 1, "FINISHED")
    assert sorted(path.name for path in Path(ledger.folder).iterdir()) == sorted(row_type.table for row_type in ROWS)
    for table in Ledger(ledger.uri).tables.values():
        with table.opened() as delta:
            assert delta is not None and delta.transaction_version("fence:j") == 2


def test_the_directory_of_another_job_is_refused(ledger: Ledger) -> None:
    end(ledger, start_incarnation(ledger, "j"))
    with pytest.raises(StateError, match="belongs to job 'j', not to job 'k'"):
        start_incarnation(Ledger(ledger.uri), "k", takeover=True)
    assert [row.job for row in ledger.jobs()] == ["j", "j"]


def test_a_job_that_runs_in_this_process_is_refused(ledger: Ledger) -> None:
    first = start_incarnation(ledger, "j")
    with pytest.raises(StateError, match=f"running as incarnation 1 in process {os.getpid()}"):
        again(ledger)
    second = again(ledger, takeover=True)
    assert second.number == 2
    assert second.older == f"process {os.getpid()} on {socket.gethostname()}, incarnation 1"
    with pytest.raises(FencedError):
        LedgerWriter(ledger, first).append(epoch(1))


def test_an_unrecorded_end_does_not_lock_the_process_out(ledger: Ledger) -> None:
    writer = LedgerWriter(ledger, start_incarnation(ledger, "j"))
    jobs = Path(ledger.folder) / "jobs"
    jobs.rename(jobs.with_name("away"))
    with pytest.raises(StateError):
        writer.end("FAILED")
    jobs.with_name("away").rename(jobs)
    assert again(ledger).number == 2


def test_a_start_that_was_fenced_off_midway_is_forgotten(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    def overtaken(point: str) -> None:
        if point == "incarnation.taken":
            monkeypatch.undo()
            again(ledger, takeover=True)

    monkeypatch.setattr(module, "reach", overtaken)
    with pytest.raises(FencedError, match="incarnation 2 of the job"):
        start_incarnation(ledger, "j")
    assert (ledger.uri, 1) not in module._running


def test_of_starts_at_once_in_one_process_one_succeeds(ledger: Ledger) -> None:
    barrier = threading.Barrier(4)

    def start(_: int) -> int | None:
        mine = Ledger(ledger.uri)
        barrier.wait()
        try:
            return start_incarnation(mine, "j").number
        except StateError:
            return None

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(start, range(4)), key=str) == [1, None, None, None]


def test_processes_that_take_over_at_once_get_different_numbers(ledger: Ledger) -> None:
    script = """
from spark_ext.errors import FencedError
say("ready"); sys.stdin.readline()
try:
    say(start_incarnation(Ledger(uri), "j", takeover=True).number)
except FencedError as problem:
    say("fenced")
"""
    with process(script, ledger.uri) as one, process(script, ledger.uri) as two:
        both = (one, two)
        for each in both:
            assert line(each) == "ready"
        proceed(*both)
        said = sorted(line(each) for each in both)
    # The one with the smaller number may be fenced off before it has fenced all tables.
    assert said in (["1", "2"], ["2", "fenced"])
    assert sorted(row.incarnation for row in ledger.jobs()) == [1, 2]


def test_a_dead_driver_is_overtaken_but_a_living_one_is_not(ledger: Ledger) -> None:
    with process(DRIVER, ledger.uri) as driver:
        assert line(driver) == "started 1"
        with pytest.raises(StateError, match=f"running as incarnation 1 in process {driver.pid}"):
            start_incarnation(ledger, "j")
        driver.send_signal(signal.SIGKILL)
        # Not reaped: as long as the parent has not waited, the process is there, dead.
        until(lambda: psutil.Process(driver.pid).status() == psutil.STATUS_ZOMBIE, "the driver is dead")
        second = start_incarnation(ledger, "j")
        assert (second.number, second.older) == (2, "")


def test_of_a_driver_on_another_host_only_its_end_is_known(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "elsewhere")
    first = start_incarnation(ledger, "j")
    monkeypatch.undo()
    second = again(ledger)
    assert second.older == f"process {os.getpid()} on elsewhere, incarnation {first.number}"
    end(ledger, second)
    assert again(ledger).older == ""


@pytest.mark.parametrize("age", [timedelta(seconds=10), timedelta(seconds=90), None], ids=["alive", "silent", "none"])
def test_a_remote_driver_is_respected(ledger: Ledger, monkeypatch: pytest.MonkeyPatch, age: timedelta | None) -> None:
    first = start_incarnation(ledger, "j")
    if age is not None:
        Heartbeat(ledger.uri, first).beat(datetime.now(timezone.utc) - age)
    monkeypatch.setattr(socket, "gethostname", lambda: "elsewhere")
    if age is None or age > timedelta(minutes=1):
        assert again(ledger, other_hosts=True).number == 2
        return
    with pytest.raises(JobRunningError, match="running as incarnation 1 on host"):
        again(ledger, other_hosts=True)
    end(ledger, first)
    assert again(ledger, other_hosts=True).number == 2


@pytest.mark.parametrize("frozen", [False, True], ids=["before it looked at the fence", "just before its commit"])
def test_a_driver_that_was_taken_over_is_fenced_off(ledger: Ledger, tmp_path: Path, frozen: bool) -> None:
    gate = tmp_path / "gate"
    env = {**os.environ, "SPARK_EXT_FAILPOINTS": f"ledger.epochs.before=wait:{gate}#2"}
    with process(DRIVER, ledger.uri, env=env if frozen else None) as driver:
        assert line(driver) == "started 1"
        if frozen:
            proceed(driver)
            until(lambda: gate.with_name("gate.waiting").exists(), "the driver stands before its commit")
        LedgerWriter(ledger, start_incarnation(ledger, "j", takeover=True)).append(epoch(2))
        if frozen:
            gate.touch()
        else:
            proceed(driver)
        assert line(driver) == "FENCED"
    assert sorted(row.epoch for row in Ledger(ledger.uri).tables["epochs"].rows()) == [1, 2]


def test_a_start_waits_for_the_jvm_of_a_driver_that_was_killed(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    jvm = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        with process(DRIVER, ledger.uri, jvm.pid) as driver:
            assert line(driver) == "started 1"
        monkeypatch.setattr(module, "JVM_TIMEOUT", 0.2)
        with pytest.raises(StateError, match=f"its JVM, process {jvm.pid}, is still running"):
            start_incarnation(ledger, "j")
        monkeypatch.undo()
        with ThreadPoolExecutor(1) as pool:
            start = pool.submit(again, ledger)
            jvm.kill()
            assert start.result().number == 2
    finally:
        jvm.kill()
        jvm.wait()


def test_a_process_with_a_dead_jvms_number_is_not_waited_for(ledger: Ledger) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as later:
        try:
            script = DRIVER.replace('"j",', '"j", now=START,')
            # The row's time is before the process began, so the number is all that they share.
            with process(script, ledger.uri, later.pid) as driver:
                assert line(driver) == "started 1"
            assert start_incarnation(ledger, "j").number == 2
        finally:
            later.kill()


def test_a_process_is_identified_by_number_and_start() -> None:
    me = psutil.Process()
    assert module.is_alive(me.pid, me.create_time())
    assert not module.is_alive(me.pid, me.create_time() - 60)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert not module.is_alive(ended.pid, datetime.now(timezone.utc).timestamp())


TABLES = [row_type.table for row_type in ROWS]


@pytest.fixture(scope="module")
def started_twice(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state directory after its first start, `first`, and after its second one, `second`."""
    folder = tmp_path_factory.mktemp("starts")
    for name in ("first", "second"):
        ledger = Ledger(str(folder / "state"))
        end(ledger, start_incarnation(ledger, "j"))
        shutil.copytree(ledger.uri, folder / name)
    return folder


@pytest.mark.parametrize("name", TABLES)
def test_a_start_without_a_table_that_was_deleted_is_refused(started_twice: Path, ledger: Ledger, name: str) -> None:
    shutil.copytree(started_twice / "second", ledger.uri)
    shutil.rmtree(Path(ledger.folder) / name)
    with pytest.raises(StateError, match="is gone") as caught:
        start_incarnation(ledger, "j")
    assert f"'{name}'" in caught.value.operator
    assert not (Path(ledger.folder) / name).exists()


def test_a_start_without_the_ledger_is_refused_after_commits(ledger: Ledger) -> None:
    end(ledger, start_incarnation(ledger, "j"))
    commits = Path(ledger.uri) / "queries" / "q" / "checkpoint" / "commits"
    commits.mkdir(parents=True)
    (commits / "0").write_text("v1\n{}")
    shutil.rmtree(ledger.folder)
    with pytest.raises(StateError, match="checkpoints of earlier runs, but no ledger"):
        again(ledger)
    assert not Path(ledger.folder).exists()


def test_a_start_that_died_before_its_number_is_not_in_the_way(ledger: Ledger) -> None:
    for table in list(ledger.tables.values())[:3]:
        table.create()
    assert again(ledger).number == 1


def test_a_clock_that_is_set_back_does_not_undo_a_restore(ledger: Ledger) -> None:
    """Between the last two rows of the restore, and before the end of its incarnation."""
    end(ledger, start_incarnation(ledger, "j"))
    own = start_incarnation(ledger, "j", for_restore=True)
    later = datetime.now(timezone.utc) + timedelta(hours=1)
    steps = [job_row(own, "restoring", later, lineage=2, reason=step) for step in ("begun", "flags")]
    LedgerWriter(ledger, own).append(steps)
    with pytest.raises(StateError, match="has begun and is not complete: its last step was 'flags'"):
        start_incarnation(ledger, "j")
    LedgerWriter(ledger, own).restored(2, 1, "/kept", {})
    end(ledger, own)
    assert interrupted_restores(ledger) == frozenset()
    assert [row.event for row in ledger.jobs()][-3:] == ["restoring", "restored", "ended"]
    assert start_incarnation(ledger, "j").lineage == 2


@pytest.mark.parametrize("name", TABLES)
def test_a_start_with_an_older_copy_of_a_table_is_refused(started_twice: Path, ledger: Ledger, name: str) -> None:
    shutil.copytree(started_twice / "second", ledger.uri)
    shutil.rmtree(Path(ledger.folder) / name)
    shutil.copytree(started_twice / "first" / "ledger" / name, Path(ledger.folder) / name)
    with pytest.raises(StateError, match="the newest start that it knows is 1, and the ledger has 2") as caught:
        start_incarnation(ledger, "j", takeover=True)
    assert f"'{name}'" in caught.value.operator


@pytest.mark.parametrize("first", [True, False], ids=["first", "later"])
def test_a_start_that_died_between_two_fences_is_not_in_the_way(
    started_twice: Path, ledger: Ledger, first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not first:
        shutil.copytree(started_twice / "second", ledger.uri)
    dying = Ledger(ledger.uri)
    monkeypatch.setattr(dying.tables["epochs"], "raise_fence", lambda fence: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        start_incarnation(dying, "j")
    assert start_incarnation(ledger, "j").number == (2 if first else 4)


def test_a_query_that_a_newer_start_does_not_have_is_fenced(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client was killed, and a server of Spark Connect runs it on."""
    place = tmp_path / "registry"
    monkeypatch.setenv(registry.VARIABLE, str(place))
    first = again(ledger)
    mine = registration(job_id=first.job_id, start=first.start, state=ledger.uri)
    identity = Identity("j", first.job_id, "q", ledger.uri, mine.checkpoint, 1, 1, first.start)
    source, sink = (
        memory(Store({"a": 3})),
        PatientFolder({"uid": "s", "path": str(tmp_path), OPTION: identity.encode()}),
    )
    writer = EpochWriter(sink, StructType())
    reader = ChannelReader(source, StructType())
    reader._planner = Planner(source, mine, NoLedger())
    start = reader.initialOffset()
    registry.publish([mine], place)
    assert reader.latestOffset(start, ReadAllAvailable()) != start
    writer.commit([], 0)
    end(ledger, first)
    registry.withdraw_older(mine.job_id, again(ledger).number, [], place)
    with pytest.raises(FencedError, match=r"incarnation 2 .* started; this query belongs to incarnation 1"):
        reader.latestOffset(start, ReadAllAvailable())
    with pytest.raises(FencedError, match="incarnation 2 of the job"):
        writer.commit([], 1)
    reader._planner = Planner(source, replace(mine, incarnation=2), NoLedger())
    assert reader.latestOffset(start, ReadAllAvailable()) != start, "a cleaner has deleted it"
    registry.publish([replace(mine, incarnation=2, job_id="of a new ledger")], place)
    with pytest.raises(FencedError):
        reader.latestOffset(start, ReadAllAvailable())
