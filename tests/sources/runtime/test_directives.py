"""Control events in what a planner plans: each makes one epoch, in order, and is in force in every replay of it."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from spark_ext.control import stamps
from spark_ext.errors import StateError, StorageError
from spark_ext.model.barriers import Checkpoints
from spark_ext.model.configuration import Stamp
from spark_ext.model.control import source
from spark_ext.model.offsets import Json, Position, Running, SourceOffset
from spark_ext.sources.contract import Channel
from spark_ext.sources.runtime.directives import MOST_BROADCASTS, DirectiveBook
from spark_ext.sources.runtime.planner import Planner
from tests.queries.fakes import FakeQuery
from tests.sources.memory import FakeLedger, Log, Memory, Store, memory, registration, rows_of
from tests.sources.runtime.test_barriers_planned import Fed


class Job:
    def __init__(self, place: Path, store: Store | None = None, *, bounded: bool = False, **registered: object) -> None:
        self.store = store or Store({"a": 100, "b": 100}, ends=False)
        self.bounded = bounded
        self.registered = {"checkpoint": str(place), **registered}
        self.ledger = FakeLedger()
        self.log = Log()
        self.now = 1000.0
        self.options: dict[str, object] = {"max_rows_per_epoch": 10}
        self.start()

    def start(self) -> None:
        self.source = memory(self.store, bounded=self.bounded, **self.options)
        given = registration(**self.registered)
        self.planner = Planner(self.source, given, self.ledger, clock=lambda: self.now)

    def epoch(self) -> dict[str, tuple[int, int]] | None:
        read = self.log.plan(self.planner)
        return None if read is None else {piece.channel: (piece.start, piece.end) for piece in read}

    def to_rest(self) -> None:
        for _ in range(1_000):
            if self.epoch() is None:
                return
        raise AssertionError("it plans on and on")

    @property
    def stamp(self) -> Stamp:
        return stamps.read(str(self.registered["checkpoint"]), self.log.offsets[-1].stamp)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def paused(job: Job) -> None:
    job.ledger.accept("pause", "query:q")
    job.to_rest()


def interval(job: Job) -> None:
    job.ledger.accept("trigger_interval", "job", {"interval": 3_600_000})
    job.epoch()


def available_now(job: Job) -> None:
    job.planner.prepare_available_now()
    job.to_rest()


def in_debt(job: Job) -> None:
    job.ledger.accept("rate_limit", "source:s", {"rows_per_second": 0.001})
    job.to_rest()


@pytest.mark.parametrize("state", [Job.to_rest, paused, interval, available_now, in_debt])
def test_e12_an_event_makes_an_epoch_even_if_nothing_is_read(job: Job, state: Callable[[Job], None]) -> None:
    state(job)
    before = job.log.offsets[-1]
    assert job.epoch() is None
    event = job.ledger.accept("set_config", "job", {"key": "k", "value": 7})
    assert job.epoch() == {}
    end = job.log.offsets[-1]
    assert (end.control, end.running) == (event.sequence, before.running)
    assert job.stamp.configuration.user("q") == {"k": 7}
    assert job.stamp.since == before.control
    assert job.epoch() is None, "one event, one epoch"
    if state is not interval:  # a planner that has begun anew does not know when the last epoch was
        job.start()
        assert job.epoch() is None


def test_events_for_others_make_no_epoch_but_configure_the_next(job: Job) -> None:
    job.to_rest()
    for number in range(50):
        job.ledger.accept("set_config", "query:other", {"key": f"k{number}", "value": number})
        assert job.epoch() is None
    job.ledger.accept("rate_limit", "source:t", {"rows_per_second": 1})
    job.ledger.accept("checkpoint", "job")
    assert job.epoch() is None
    job.ledger.accept("set_config", "query:q", {"key": "mine", "value": 1})
    assert job.epoch() == {}
    assert len(job.stamp.configuration.user("other")) == 50
    assert job.stamp.configuration.user("q") == {"mine": 1}
    assert job.log.offsets[-1].control == job.ledger.accepted[-1].sequence


def test_many_events_for_others_are_looked_at_once(job: Job) -> None:
    """Spark asks every 10 ms."""
    job.to_rest()
    others = FakeLedger()
    job.ledger.accepted += [others.accept("broadcast", "query:other", {"type": "t"}) for _ in range(20_000)]
    assert job.epoch() is None
    looked: list[int] = []
    original = DirectiveBook._mine

    def counted(self: DirectiveBook, start: SourceOffset, event: Any) -> bool:
        looked.append(event.sequence)
        return original(self, start, event)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DirectiveBook, "_mine", counted)
        assert job.epoch() is None and not looked
        job.ledger.accept("set_config", "query:other", {"key": "k", "value": 1})
        assert job.epoch() is None
    assert len(looked) == 1


@pytest.mark.parametrize("target", ["job", "query:q", "source:s"])
def test_e3_nothing_is_read_while_paused_and_limits_stay(job: Job, target: str) -> None:
    job.ledger.accept("rate_limit", "source:s", {"rows_per_epoch": 4})
    assert job.epoch() == {"a": (0, 2), "b": (0, 2)}
    job.ledger.accept("pause", target)
    assert job.epoch() == {}
    assert job.epoch() is None
    job.start()
    assert job.epoch() is None
    job.ledger.accept("resume", target)
    assert job.epoch() == {"a": (2, 4), "b": (2, 4)}


def test_a_resume_of_another_target_does_not_end_a_pause(job: Job) -> None:
    job.ledger.accept("pause", "source:s")
    job.ledger.accept("resume", "job")
    job.ledger.accept("resume", "query:q")
    assert job.epoch() == {}
    assert job.epoch() is None


class Together(Memory):
    """Decides once where its channels begin, and discovers none later, as a topic that is read to its present end."""

    channels_end = False

    def resume(self, known: Sequence[Channel], finished: frozenset[str]) -> None:
        self.begun = bool(known or finished)

    def discover(self) -> list[Channel]:
        return [] if self.begun else super().discover()


@pytest.mark.parametrize(
    ("kind", "value"), [("pause", None), ("rate_limit", {"rows_per_second": 5})], ids=["pause", "limit"]
)
def test_a_channel_not_to_be_read_yet_is_in_the_first_offset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, value: Json
) -> None:
    monkeypatch.setattr("tests.sources.memory.Memory", Together)
    job = Job(tmp_path, Store({"a": 10, "b": 10}), bounded=True)
    job.options = {"readers": 1}
    job.start()
    job.ledger.accept(kind, "source:s/a", value)
    assert job.epoch() == {"b": (0, 10)}
    assert job.log.offsets[-1].running["a"].at == 0
    assert job.epoch() is None and not job.log.offsets[-1].ended
    job.start()
    job.ledger.accept("resume" if kind == "pause" else kind, "source:s/a")
    read = [job.epoch() or {} for _ in range(3)]
    assert [one for one in read if one] == [{"a": (0, 10)}]
    assert job.log.offsets[-1].ended


def test_a_paused_channel_is_not_read(job: Job) -> None:
    job.ledger.accept("pause", "source:s/a")
    assert job.epoch() == {"b": (0, 10)}
    job.ledger.accept("resume", "source:s/a")
    assert job.epoch() == {"a": (0, 5), "b": (10, 15)}
    job.ledger.accept("pause", "source:s/b")
    assert job.epoch() == {"a": (5, 15)}
    job.start()
    assert job.epoch() == {"a": (15, 25)}
    job.ledger.accept("pause", "source:s/a")
    assert job.epoch() == {}
    assert job.epoch() is None


def test_a_pause_does_not_hold_up_a_barrier_or_a_drain(job: Job) -> None:
    job.ledger.accept("pause", "source:s")
    job.epoch()
    job.ledger.known, job.ledger.own = Checkpoints(4, frozenset({4})), 4
    assert job.epoch() == {}
    assert job.log.offsets[-1].barrier == 4
    job.ledger.accept("drain", "job")
    assert job.epoch() == {}
    assert job.log.offsets[-1].drained


def test_a_drain_that_takes_several_epochs_outlives_a_restart_of_the_query(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = False
    monkeypatch.setattr(Memory, "drained", lambda self, unread: ends)
    job.ledger.accept("drain", "job")
    job.epoch()
    assert job.log.offsets[-1].control == 1 and not job.log.offsets[-1].ended
    ends = True
    job.start()
    job.epoch()
    assert job.log.offsets[-1].drained


def test_the_querys_interval_precedes_the_jobs_and_the_given_one(tmp_path: Path) -> None:
    job = Job(tmp_path, interval_ms=1_000)

    def between() -> float:
        while job.epoch() is None:
            job.now += 0.1
        begin = job.now
        while True:
            job.now += 0.1
            if job.epoch() is not None:
                return round(job.now - begin, 1)

    assert between() == pytest.approx(1, abs=0.2)
    job.ledger.accept("trigger_interval", "job", {"interval": 3_000})
    job.epoch()
    between()
    assert between() == pytest.approx(3, abs=0.2)
    job.ledger.accept("trigger_interval", "query:q", {"interval": 0})
    job.epoch()
    assert between() == pytest.approx(0.1, abs=0.01)
    job.ledger.accept("trigger_interval", "query:q", None)
    job.epoch()
    between()
    assert between() == pytest.approx(3, abs=0.2)


def seek(job: Job, position: Json, channel: str = "a") -> str:
    return job.ledger.accept("seek", f"source:s/{channel}", {"position": position, "yes": True}).event_id


def test_e14_a_channel_is_sent_to_and_fro_and_others_continue(job: Job) -> None:
    job.epoch()
    there = seek(job, 50)
    assert job.epoch() == {"b": (5, 15)}
    assert job.stamp.outcomes[there] == {
        "status": "applied",
        "result": {"channel": "a", "from": 5, "to": 50, "skipped": 45},
    }
    assert job.epoch() == {"a": (50, 55), "b": (15, 20)}
    back = seek(job, 2)
    job.epoch()
    assert job.stamp.outcomes[back]["result"] == {"channel": "a", "from": 55, "to": 2, "read_again": 53}
    assert job.epoch() == {"a": (2, 7), "b": (30, 35)}
    assert job.log.read() == job.log.read(), "a replay reads the same"


def test_a_jump_precedes_an_epoch_of_only_a_barrier_or_event(job: Job) -> None:
    job.epoch()
    seek(job, 50)
    job.ledger.accept("pause", "source:s")
    assert job.epoch() == {}
    assert job.log.offsets[-1].running["a"] == Running(50, jumped=True)
    job.ledger.known, job.ledger.own = Checkpoints(4, frozenset({4})), 4
    assert job.epoch() == {}
    job.ledger.accept("set_config", "job", {"key": "k", "value": 1})
    assert job.epoch() == {}
    job.ledger.accept("resume", "source:s")
    assert job.epoch() == {"a": (50, 55), "b": (5, 10)}
    assert job.epoch() == {"a": (55, 60), "b": (10, 15)}


def test_several_jumps_in_one_epoch_lead_to_the_last_position(job: Job) -> None:
    job.epoch()
    first, second, third = seek(job, 50), seek(job, 60), seek(job, 55)
    job.epoch()
    found = [job.stamp.outcomes[one]["result"] for one in (first, second, third)]
    assert [(one["from"], one["to"]) for one in found] == [(5, 50), (50, 60), (60, 55)]
    assert (job.epoch() or {})["a"][0] == 55


def test_a_jump_to_the_end_finishes_the_channel(tmp_path: Path) -> None:
    job = Job(tmp_path, Store({"a": 100}), bounded=True)
    job.epoch()
    seek(job, 100)
    assert job.epoch() == {}
    assert job.epoch() == {}
    assert job.log.offsets[-1].ended


@pytest.mark.parametrize("position", [-1, 101, "x", None, {"deep": [1]}])
def test_a_missing_position_is_rejected_with_the_sources_reason(job: Job, position: Json) -> None:
    job.epoch()
    wrong = seek(job, position)
    assert (job.epoch() or {})["a"] == (5, 10)
    assert job.stamp.outcomes[wrong]["status"] == "rejected"
    assert "the number of a row, from 0 to 100" in job.stamp.outcomes[wrong]["reason"]


def test_finished_or_unknown_channels_are_not_sent_anywhere(tmp_path: Path) -> None:
    job = Job(tmp_path, Store({"a": 5, "b": 5, "c": 500}), bounded=True)
    job.options = {"max_rows_per_epoch": 10, "readers": 3}
    job.start()
    job.epoch()
    job.epoch()
    assert {finish.channel for finish in job.log.offsets[-1].finished} == {"a", "b"}
    found = {name: seek(job, 1, name) for name in ("a", "nowhere")}
    job.epoch()
    assert job.stamp.outcomes[found["a"]] == {"status": "rejected", "reason": "the channel has finished"}
    assert "no such channel" in job.stamp.outcomes[found["nowhere"]]["reason"]
    # In the ledger, and no longer in the offset.
    job.ledger.flags = [finish.channel for finish in job.log.offsets[-1].finished]
    job.epoch()
    assert not job.log.offsets[-1].finished
    late, limit = seek(job, 1, "b"), job.ledger.accept("rate_limit", "source:s/b", {"rows_per_second": 1}).event_id
    job.epoch()
    for event in (late, limit):
        assert job.stamp.outcomes[event] == {"status": "rejected", "reason": "the channel has finished"}
    assert job.stamp.configuration.standing.get("rate_limit") is None


def failing(problem: Exception) -> Callable[..., Position]:
    def seek(*_: object) -> Position:
        raise problem

    return seek


@pytest.mark.parametrize("mistake", [ZeroDivisionError, KeyError, AttributeError])
def test_a_mistake_in_the_source_rejects_the_event_only(
    job: Job, monkeypatch: pytest.MonkeyPatch, mistake: type[Exception]
) -> None:
    monkeypatch.setattr(Memory, "seek", failing(mistake("oh")))
    job.epoch()
    wrong = seek(job, 3)
    assert (job.epoch() or {})["a"] == (5, 10)
    assert mistake.__name__ in job.stamp.outcomes[wrong]["reason"]


def test_storage_that_is_away_is_no_reason_to_reject(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    job.epoch()
    there = seek(job, 50)
    with monkeypatch.context() as patch:
        patch.setattr(Memory, "seek", failing(StorageError("away", operator="s", kept="all", do="wait")))
        with pytest.raises(StorageError):
            job.epoch()
    job.start()
    job.epoch()
    assert job.stamp.outcomes[there]["status"] == "applied"


def test_too_many_broadcasts_are_spread_over_epochs_in_order(job: Job) -> None:
    job.to_rest()
    for number in range(2 * MOST_BROADCASTS + 7):
        job.ledger.accept("broadcast", "query:q", {"type": "t", "value": number})
    job.ledger.accept("set_config", "job", {"key": "last", "value": True})
    seen: list[int] = []
    since = job.log.offsets[-1].control
    while job.epoch() is not None:
        assert job.stamp.since == since
        since = job.log.offsets[-1].control
        seen += [one["value"] for one in job.stamp.broadcasts]
        assert len(job.stamp.broadcasts) <= MOST_BROADCASTS
        job.start()
    assert seen == list(range(2 * MOST_BROADCASTS + 7))
    assert job.stamp.configuration.user("q") == {"last": True}


def test_large_broadcasts_fill_a_stamp_earlier(job: Job) -> None:
    job.to_rest()
    for _ in range(100):
        job.ledger.accept("broadcast", "query:q", {"type": "t", "value": "x" * 60_000})
    sizes = []
    while job.epoch() is not None:
        sizes.append(len(job.stamp.broadcasts))
    assert sum(sizes) == 100 and max(sizes) < 40


def test_a_plan_that_became_no_epoch_is_remade_with_the_newest(job: Job) -> None:
    job.epoch()
    seek(job, 50)
    plans = [job.planner.next(job.log.offsets[-1]) for _ in range(2)]
    assert plans[0].stamp == plans[1].stamp and plans[0].running["a"] == plans[1].running["a"]
    job.start()
    assert job.planner.next(job.log.offsets[-1]).stamp == plans[0].stamp
    job.ledger.accept("set_config", "job", {"key": "k", "value": 1})
    job.start()
    job.epoch()
    assert job.stamp.configuration.user() == {"k": 1}
    assert job.log.offsets[-1].running["a"].at == 50


def test_an_expired_event_is_not_obeyed_whoever_looks_and_when(tmp_path: Path) -> None:
    clock, ledger = [0.5], FakeLedger()
    books = [
        DirectiveBook(
            memory(Store({}), uid=uid), registration(checkpoint=str(tmp_path), uid=uid), ledger, lambda: clock[0]
        )
        for uid in ("s", "t")
    ]
    ledger.accept("set_config", "job", {"key": "k", "value": 1}, expires_ms=1_000)
    ledger.accept("set_config", "job", {"key": "l", "value": 1}, expires_ms=400)
    first = books[0].next(SourceOffset("s"))
    clock[0] = 99.0
    second = books[1].next(SourceOffset("t"))
    assert first.configuration == second.configuration
    assert first.configuration.user() == {"k": 1}
    for directives in (first, second):
        assert directives.stamp is not None
        assert {name: one["status"] for name, one in directives.stamp.outcomes.items()} == {"e2": "expired"}


def test_an_earlier_historys_settings_hold_but_not_its_requests(tmp_path: Path) -> None:
    job = Job(tmp_path, lineage=3, begun=5)
    job.to_rest()
    old = job.ledger.accept("broadcast", "job", {"type": "t"}, lineage=2, incarnation=9).event_id
    early = job.ledger.accept("broadcast", "job", {"type": "t"}, lineage=3, incarnation=4).event_id
    assert job.epoch() is None
    job.ledger.accept("set_config", "job", {"key": "k", "value": 1}, lineage=1, incarnation=1)
    now = job.ledger.accept("broadcast", "job", {"type": "t"}, lineage=3, incarnation=5).event_id
    assert job.epoch() == {}
    assert {name: one["status"] for name, one in job.stamp.outcomes.items()} == {old: "failed", early: "failed"}
    assert [one["event_id"] for one in job.stamp.broadcasts] == [now]
    assert job.stamp.configuration.user() == {"k": 1}


def test_a_stamp_that_is_missing_or_changed_stops_the_source(job: Job, tmp_path: Path) -> None:
    job.ledger.accept("rate_limit", "source:s", {"rows_per_epoch": 4})
    job.epoch()
    place = tmp_path / stamps.file_of(job.log.offsets[-1].stamp)
    text = place.read_text()
    for content in (None, text.replace("4", "5", 1)):
        place.unlink(missing_ok=True)
        if content is not None:
            place.write_text(content)
        stamps.read.cache_clear()
        job.start()
        with pytest.raises(StateError, match=r"says what configuration an epoch has, (is missing|was changed)"):
            job.epoch()
    place.write_text(text)
    stamps.read.cache_clear()
    assert job.epoch() == {"a": (2, 4), "b": (2, 4)}


def test_what_is_rejected_leaves_in_force_what_was(job: Job) -> None:
    job.ledger.accept("rate_limit", "source:s", {"rows_per_epoch": 4})
    wrong = job.ledger.accept("rate_limit", "source:s", {"rows_per_epoch": 1, "older_than": 1_000}).event_id
    assert job.epoch() == {"a": (0, 2), "b": (0, 2)}
    assert job.stamp.outcomes[wrong]["status"] == "rejected"
    assert "when its rows were written" in job.stamp.outcomes[wrong]["reason"]
    assert job.stamp.configuration.of("rate_limit", source("s")) == {"rows_per_epoch": 4}
    assert (job.log.offsets[-1].control, job.stamp.configuration.sequence) == (2, 2)
    job.start()
    assert job.epoch() == {"a": (2, 4), "b": (2, 4)}


def test_e11_one_configuration_per_epoch_when_a_source_has_ended(tmp_path: Path) -> None:
    ledger = FakeLedger()
    one = memory(Store({"a": 4}), max_rows_per_epoch=4)
    two = memory(Store({"a": 100}, ends=False), bounded=False, uid="t", max_rows_per_epoch=4)
    planners = [
        Planner(made, registration(uid=made.options.uid, checkpoint=str(tmp_path)), ledger, clock=lambda: 1.0)
        for made in (one, two)
    ]
    offsets = [SourceOffset("s"), SourceOffset("t")]
    seen = []
    for epoch in range(6):
        ledger.accept("set_config", "job", {"key": "epoch", "value": epoch})
        planned = [planner.next(offset) for planner, offset in zip(planners, offsets, strict=True)]
        offsets = [SourceOffset.from_json(json.loads(json.dumps(one.to_json()))) for one in planned]
        FakeQuery(tmp_path).plan(*offsets)
        seen.append(stamps.configuration(str(tmp_path), offsets).user("q")["epoch"])
    assert offsets[0].ended and offsets[0].control < offsets[1].control
    assert seen == list(range(6))


def test_an_event_for_a_source_of_the_query_is_left_to_it(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.to_rest()
    job.ledger.accept("seek", "source:t/a", {"position": 1, "yes": True})
    job.ledger.accept("set_config", "job", {"key": "k", "value": 1})
    assert job.epoch() == {}
    assert job.stamp.outcomes == {}


def test_channels_that_advance_together_are_not_addressed_singly(tmp_path: Path) -> None:
    ledger = FakeLedger()
    made = Planner(Fed({}), registration(uid="fed", checkpoint=str(tmp_path)), ledger)
    first = made.next(SourceOffset("fed"))
    events = [
        ledger.accept("pause", "source:fed/0").event_id,
        ledger.accept("rate_limit", "source:fed/0", {"rows_per_second": 1}).event_id,
        ledger.accept("seek", "source:fed/0", {"position": 1, "yes": True}).event_id,
    ]
    second = made.next(first)
    assert second.running["0"].at == 2
    outcomes = stamps.read(str(tmp_path), second.stamp).outcomes
    assert [outcomes[event]["status"] for event in events] == ["rejected"] * 3
    ledger.accept("pause", "source:fed")
    third = made.next(second)
    assert third.running["0"].at == 2 and made.next(third) is third


def test_outside_a_job_there_are_no_events() -> None:
    ledger = FakeLedger()
    ledger.accept("pause", "job")
    log = Log()
    assert log.plan(Planner(memory(Store({"a": 3})), None, ledger)) is not None
    assert rows_of(log.read()) == {"a": [0, 1, 2]}
    assert log.offsets[-1].control == 0
