"""Conformance, "Control", under `kill -9`: a driver dies between two steps of an event, and the next one continues.

One job for a few steps, looked at from many sides. It is started and stopped. Then, for each step: events come while no
driver runs, and a driver dies at the step, which is then passed for the first time since the events were accepted. In
the end further events come, and it is started again.
"""

import json
import os
import signal
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import SparkSession

from spark_ext.control.event_state import EventState
from spark_ext.control.requests import ControlRefused, Refusal
from spark_ext.failpoints import VARIABLE, FailPoint
from spark_ext.jobs.controlling.driver_directives import LOST
from spark_ext.ledger.schema import CheckpointRow
from spark_ext.model.checkpoint_metadata import CheckpointMetadata
from spark_ext.model.lifecycle import State
from spark_ext.spark.logs.spark_log import SparkLog
from tests.support.steered import RATE, Steering, driver, steered
from tests.support.waiting import until

STEPS: dict[str, str] = {
    # In the processes that plan, write and commit.
    FailPoint.SINK_BEFORE_COMMIT: "kill-driver",  # first in its job: another death would leave an epoch to repeat here
    FailPoint.CONTROL_STAMPED: "kill-driver",
    "rows.1": "kill-driver",
    FailPoint.CONTROL_BEFORE_STAMP: "kill-driver",
    FailPoint.SINK_COMMITTED: "kill-driver",
    # In the driver itself.
    FailPoint.LEDGER_BEFORE_CONTROL_TRANSITIONS: "kill",
    FailPoint.LEDGER_CONTROL_TRANSITIONS: "kill",
    FailPoint.LEDGER_BEFORE_CONTROL_EVENTS: "kill",  # the version of the lookup
    FailPoint.LEDGER_CONTROL_EVENTS: "kill#2",  # the barrier of the aligned event
    FailPoint.CHECKPOINT_TRIGGERED: "kill",
    FailPoint.CHECKPOINT_CUT: "kill",
    FailPoint.CHECKPOINT_RECORDED: "kill",
    FailPoint.CONTROL_BEFORE_COLLECT: "kill",
    FailPoint.CONTROL_COLLECTED: "kill",
}
"""Where a driver dies, and by which action: one step for each state in which a death can leave the files."""

CORE: Final = "rows.1"  # the step that is in the core: planned but not committed
_OTHERS: Final = [step for step in STEPS if step != CORE]
GROUPS: Final = {CORE: [CORE]} | {group[0]: group for group in (_OTHERS[at::2] for at in range(2))}
"""The steps at which the drivers of one job die."""

pytestmark = pytest.mark.timeout(1200)


@dataclass(frozen=True)
class Death:
    step: str
    stage: EventState  # accepted before the driver was started; so was `aligned`
    aligned: EventState
    reload: EventState
    planned: Mapping[tuple[str, int], str]  # the offsets that it has left


@dataclass(frozen=True)
class Crashed:
    job: Steering
    deaths: Sequence[Death]
    sent: Sequence[EventState]  # all events, as they were accepted
    forward: EventState
    back: EventState

    def over(self, event: EventState) -> EventState:
        return self.job.client.event(event.event_id)


@pytest.fixture(scope="module", params=list(GROUPS))
def crashed(
    request: pytest.FixtureRequest, spark_of_process: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Crashed:
    return crash(spark_of_process, tmp_path_factory.mktemp("crashed"), GROUPS[request.param])


def crash(spark: SparkSession, folder: Path, steps: Sequence[str]) -> Crashed:
    job = Steering(folder)
    first = steered(spark, folder).start()
    until(lambda: min(job.committed("q"), job.committed("r")) >= 1, "epochs of both queries")
    first.stop()
    at = {name: state.at for name, state in job.told.epochs("q")[-1].offsets["in"].running.items()}
    limit = job.send("rate_limit", "source:in", {"rows_per_epoch": 40})
    forward = job.send("seek", "source:in/0", {"position": at["0"] + 20, "yes": True})
    back = job.send("seek", "source:in/1", {"position": max(0, at["1"] - 30), "yes": True})
    sent, deaths = [limit, forward, back], []
    for number, step in enumerate(steps, 1):
        stage, note = job.set("stage", number), job.send("broadcast", "job", {"type": "note", "value": number})
        reload = job.reload()
        aligned = job.set(f"both {number}", number, delivery="aligned")
        sent += [stage, note, reload, aligned]
        deaths.append(Death(step, stage, aligned, reload, killed_at(job, step)))
    last = len(steps) + 1
    sent += [job.set("stage", last), job.send("broadcast", "job", {"type": "note", "value": last})]
    second = steered(spark, folder).start()
    try:
        job.over(*sent)
        job.sees("stage", last)
        # The driver may have read on before it obeyed.
        passed = max(at["1"], job.client.event(back.event_id).result["from"])
        until(lambda: _at(job, "1") > passed, "what is read again")
        until(lambda: job.committed() % 3 == 1, "what the last multiple of three has emitted")
    finally:
        second.stop()
    return Crashed(job, deaths, sent, forward, back)


def killed_at(job: Steering, step: str) -> dict[tuple[str, int], str]:
    with driver(job.folder, **{VARIABLE: f"{step}={STEPS[step]}"}) as run:
        code = run.wait(300)
        assert code == -signal.SIGKILL, f"{step} was not reached: {code}\n{run.text()[-3000:]}"
        until(lambda: not run.members(), "the killed driver's JVM and workers have ended")
    return {
        (query, int(file.name)): file.read_text()
        for query in job.told.queries
        for file in (Path(job.told.checkpoint(query)) / "offsets").glob("[0-9]*")
    }


def _at(job: Steering, channel: str) -> int:
    newest = [epoch for epoch in job.told.epochs("q") if epoch.number <= job.committed()][-1]
    return int(newest.offsets["in"].running[channel].at)


FEW: Final = (f"[{CORE}]",)


@pytest.mark.core_for(*FEW)
@pytest.mark.slow(60, "a driver of its own for each step")
def test_e1_an_accepted_event_takes_effect_once_after_a_kill(crashed: Crashed) -> None:
    """All rows are those of the offsets, and saw what these say; each event has one final status and one epoch."""
    assert crashed.job.told.problems() == []
    assert {crashed.over(event).status for event in crashed.sent} == {"acknowledged"}
    sent = [event.idempotency_key for event in crashed.sent]
    rows = crashed.job.told.events()
    assert [row.idempotency_key for row in rows if row.idempotency_key and row.origin != "job"] == sent


@pytest.mark.core_for(*FEW)
def test_e2_a_replayed_epoch_has_its_first_configuration(crashed: Crashed) -> None:
    for number, death in enumerate(crashed.deaths, 1):
        for (query, epoch), text in death.planned.items():
            place = Path(crashed.job.told.checkpoint(query)) / "offsets" / str(epoch)
            assert not place.exists() or place.read_text() == text, f"{query}/{epoch} was planned again"
            rows = {row["config"] for row in crashed.job.told.table(query) if row["epoch"] == epoch}
            stages = {json.loads(config).get("stage", 0) for config in rows}
            assert all(stage <= number for stage in stages), f"{query}/{epoch} was planned before stage {number + 1}"
        if death.step in (CORE, FailPoint.SINK_BEFORE_COMMIT):
            applied = crashed.over(death.stage).applied
            assert any((query, epoch) in death.planned for query, epoch in applied.items())


@pytest.mark.core_for(*FEW)
def test_e15_a_reload_is_obeyed_once_and_replayed_epochs_have_their_version(crashed: Crashed) -> None:
    """What each row saw is compared with its epoch's stamp in `problems`."""
    made = [row.value for row in crashed.job.told.events() if row.kind == "lookup_version"]
    assert [value["version"] for value in made] == list(range(len(crashed.deaths) + 1)), "none is made twice"
    for number, death in enumerate(crashed.deaths, 1):
        event = crashed.over(death.reload)
        assert (event.status, event.result) == ("acknowledged", {"version": number})
        assert event.applied.keys() == {"q", "r"}
        for query, epoch in event.applied.items():
            rows = crashed.job.told.table(query)
            assert all(row["version"] >= number for row in rows if row["epoch"] >= epoch)
            assert all(row["version"] < number for row in rows if row["epoch"] < epoch)


@pytest.mark.core_for(*FEW)
def test_e9_all_queries_obey_behind_one_cut_also_after_a_kill(crashed: Crashed) -> None:
    for number, death in enumerate(crashed.deaths, 1):
        assert_aligned(crashed.job, crashed.over(death.aligned), f"both {number}", number)
    events = crashed.job.told.events()
    begun, released = ({row.value["checkpoint"] for row in events if row.kind == kind} for kind in ("align", "release"))
    assert released and released <= begun


@pytest.mark.core_for(*FEW)
def test_e13_replayed_tasks_have_emitted_once(crashed: Crashed) -> None:
    assert_emitted_once(crashed.job, 3)


@pytest.mark.core_for(*FEW)
def test_e14_a_seek_is_obeyed_once_also_after_a_kill(crashed: Crashed) -> None:
    """What is skipped is not there, what is read again is there twice, and everything else once."""
    jumps = Counter((epoch.number, name) for epoch in crashed.job.told.epochs("q") for name in epoch.jumps("in"))
    forward, back = crashed.over(crashed.forward), crashed.over(crashed.back)
    assert set(jumps) == {(forward.applied["q"], "0"), (back.applied["q"], "1")}
    assert forward.result["to"] - forward.result["from"] == forward.result["skipped"]
    assert back.result["read_again"] == back.result["from"] - back.result["to"]
    rows = Counter((row["channel"], row["seq"]) for row in crashed.job.told.table("q") if row["source"] == "in")
    skipped = range(forward.result["from"], forward.result["to"])
    again = range(back.result["to"], back.result["from"])
    assert [rows["0", number] for number in skipped] == [0] * len(skipped)
    assert [rows["1", number] for number in again] == [2] * len(again)
    rest = {key: count for key, count in rows.items() if not (key[0] == "1" and key[1] in again)}
    assert set(rest.values()) == {1}
    ends = {name: max(number for channel, number in rows if channel == name) for name in "01"}
    assert all(rows["0", number] for number in range(ends["0"]) if number not in skipped)
    assert all(rows["1", number] for number in range(ends["1"]))


def switched(job: Steering, key: str, value: int) -> dict[str, int]:
    """By query the first epoch in which a key has a value; all after it have it too."""
    first = {}
    for query in job.told.queries:
        epochs = job.told.epochs(query)
        first[query] = next(one.number for one in epochs if one.configuration.user(query).get(key) == value)
        assert all(one.configuration.user(query).get(key) == value for one in epochs[first[query] :])
    return first


def assert_aligned(job: Steering, event: EventState, key: str, value: int) -> None:
    """In each query an event takes effect with the first epoch behind the cut of one checkpoint."""
    cuts = [
        {uid: one.epoch for uid, one in CheckpointMetadata.from_json(row.metadata).queries.items()}
        for row in job.told.ledger.table(CheckpointRow).rows([("query", "=", ""), ("status", "=", "COMPLETED")])
        if row.mode == "aligned"
    ]
    first = switched(job, key, value)
    assert first == event.applied
    assert {query: epoch - 1 for query, epoch in first.items()} in cuts, f"{first} is behind none of {cuts}"


def assert_emitted_once(job: Steering, every: int) -> None:
    """Each task with rows in a committed epoch that is a multiple of a number has emitted one event."""
    emitted = Counter(
        (row.value["value"]["query"], row.value["value"]["epoch"], row.value["value"]["part"])
        for row in job.told.events()
        if row.origin == "emit"
    )
    wanted = {
        (query, row["epoch"], row["part"])
        for query in job.told.queries
        for row in job.told.table(query)
        if row["epoch"] % every == 0 and row["epoch"] <= job.committed(query)
    }
    assert emitted == Counter(wanted)


@pytest.mark.core_for("[stop]")
@pytest.mark.slow(40, "a driver of its own, which is frozen and killed")
@pytest.mark.parametrize("last", ["stop", "drain"])
def test_e10_after_a_crash_what_stands_holds(spark: SparkSession, tmp_path: Path, last: str) -> None:
    """They come to a driver that is frozen, so that they are accepted, and is then killed."""
    job = Steering(tmp_path)
    with driver(tmp_path) as run:
        until(lambda: min(job.committed("q"), job.committed("r")) >= 1 or run.poll() is not None, "epochs")
        limit, pause = job.send("rate_limit", "source:in", {"rows_per_epoch": 5}), job.send("pause", "query:r")
        job.over(limit, pause)
        os.kill(run.pid, signal.SIGSTOP)
        lost = [job.send("checkpoint"), job.send("savepoint", value={"path": str(tmp_path / "sp")})]
        lost += [job.send("dump", value={"scope": "driver"}), job.send("restart", "query:q")]
        later = job.set("later", 1)
        ends = job.send(last)
        os.kill(run.pid, signal.SIGKILL)
        run.wait(60)
        until(lambda: not run.members(), "the killed driver's JVM and workers have ended")
    still = job.counts()["r"]
    with pytest.raises(ControlRefused) as refused:
        job.send("checkpoint")
    assert refused.value.refusal is Refusal.ENDED
    assert steered(spark, tmp_path).run(progress=False).state is (State.CANCELED if last == "stop" else State.FINISHED)
    for event in job.over(*lost):
        assert (event.status, event.reason) == ("failed", LOST)
    assert job.over(ends)[0].status == "acknowledged"
    assert not (tmp_path / "sp").exists()
    if last == "stop":
        again = steered(spark, tmp_path).start()
        job.sees("later", 1)
        assert job.over(later)[0].status == "acknowledged"
        again.stop()
    assert job.counts()["r"] == still, "it is paused"
    assert job.told.problems() == []
    assert SparkLog(job.told.checkpoint("q")).newest_commit() is not None and RATE > 5
