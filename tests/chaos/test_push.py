"""Kills of gateways that clients push to, and what a checker of sets finds. Short: see `python -m tests.chaos.push`."""

import signal
import sys
from collections import Counter
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from spark_ext.failpoints import ONCE_DIR, VARIABLE, FailPoint
from tests.chaos.push import LIMIT, SIGNING, Found, Gateway, Progress, ids, secret
from tests.chaos.push_client import Client, Journaled
from tests.chaos.push_job import INBOX, job
from tests.chaos.scenario import ROOT
from tests.servers.ports import free_ports
from tests.support import cheap_jvm
from tests.support.inboxes import Gateways
from tests.support.processes import Tree
from tests.support.waiting import until


def test_the_checker_tells_lost_doubled_and_recovered_events_apart() -> None:
    said = Journaled({"a", "b", "c", "d"}, {"a": 1, "b": 2})
    found = Found.of(said, ["b", "c", "c", "x"])
    sets = found.lost, found.recovered, found.doubled, found.strangers
    assert [sorted(some) for some in sets] == [["a"], ["c"], ["c"], ["x"]]
    assert len(found.problems()) == 3
    assert Found.of(said, ["a", "b", "c"]).problems() == []


def test_a_journal_counts_redeliveries_after_a_seal(tmp_path: Path) -> None:
    lines = ['{"what": "sends", "id": "m", "events": ["e"]}']
    lines += [
        f'{{"what": "acknowledged", "id": "m", "events": ["e"], "gateway": {gateway}, "at": {at}}}'
        for gateway, at in ((0, 10), (1, 20), (0, 40), (1, 50))
    ]
    (tmp_path / "c.jsonl").write_text("\n".join([*lines, '{"what": "sen']))
    said = Journaled.read(tmp_path)
    assert (said.attempted, said.acknowledged, said.redelivered()) == ({"e"}, {"e": 10}, 2)
    assert said.after_seals([(0, 30)]) == 2
    assert said.after_seals([(0, 45), (1, 1)]) == 1


def test_a_trial_continues_where_its_journal_ends(tmp_path: Path) -> None:
    first = Progress(tmp_path / "journal")
    first.note(kill="gateway")
    with (tmp_path / "journal").open("a") as file:
        file.write('{"kill": "dri')
    again = Progress(tmp_path / "journal")
    again.note(kill="driver")
    assert Progress(tmp_path / "journal").kills() == Counter(gateway=1, driver=1)


@pytest.mark.chaos
@pytest.mark.slow(10, "starts a gateway twice, and a job")
def test_acknowledged_events_survive_a_kill_of_their_gateway(spark: SparkSession, tmp_path: Path) -> None:
    out, journal = tmp_path / "job", tmp_path / "journal"
    made = job(spark, out).start()
    gateway = Gateway(0, out / "state", out / "wal", free_ports(1)[0], {**secret(), "PYTHONPATH": str(ROOT)}, tmp_path)
    client = Client("c", journal, [gateway.url], SIGNING, "1")
    for wanted in (30, 60):
        with gateway.start():  # its end kills
            gateway.up()
            if wanted == 30:
                client.start()
            until(lambda: len(Journaled.read(journal).acknowledged) >= wanted, "events are acknowledged")  # noqa: B023
            if wanted == 60:
                client.stop()
                made.control.drain()
                assert made.await_termination(120).finished
    assert client.failure is None
    found = Found.of(Journaled.read(journal), ids(out / "out"))
    assert (found.problems(), found.acknowledged >= 60) == ([], True)


@pytest.mark.chaos
@pytest.mark.slow(40, "starts a driver three times")
def test_g1_kills_around_the_sync_before_a_release_lose_and_double_nothing(tmp_path: Path) -> None:
    out, once = tmp_path / "job", tmp_path / "once"
    once.mkdir()
    points = f"{FailPoint.INBOX_BEFORE_SYNC}=kill;{FailPoint.INBOX_BEFORE_RELEASE}=kill"
    env = {**secret(), "SPARK_MASTER": "local[2]", VARIABLE: points, ONCE_DIR: str(once)}
    env |= cheap_jvm.forking(ROOT)
    gateways, releases = Gateways(out / "state", INBOX), []

    def released() -> int:
        return gateways.place.log("g").released()

    def events() -> list[str]:
        there = (out / "out" / "_delta_log").exists()
        return DeltaTable(out / "out").to_pyarrow_table(columns=["event_id"])["event_id"].to_pylist() if there else []

    for start in range(3):
        command = [sys.executable, "-m", "tests.chaos.push_job", "--out", str(out)]
        with Tree(command, tmp_path / f"driver-{start}.log", env, cwd=ROOT) as driver:
            until(lambda: gateways.place.find() is not None, "the job has described its inbox")
            gateways.send("g", f"first-{start}", f"second-{start}")
            if start < 2:
                assert driver.wait(LIMIT) == -signal.SIGKILL, driver.text()
                releases.append(released())
            else:
                until(lambda: released() and set(events()) >= set(gateways.acknowledged), "all is read, and released")
    gateways.close()
    assert (releases, sorted(events())) == ([0, 0], sorted(gateways.acknowledged))
