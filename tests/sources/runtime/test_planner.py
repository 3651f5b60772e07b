"""Single properties of the planner: limits, interval, drain, final epochs, AvailableNow, and what planning costs."""

import inspect
import json
import time
from collections.abc import Collection

import hypothesis.strategies as st
import pytest
from hypothesis import given

from spark_ext.model.offsets import Running, SourceOffset
from spark_ext.sources.contract import Channel
from spark_ext.sources.runtime.planner import Changes, NoLedger, Planner
from spark_ext.spark.session.registry import PARALLELISM
from tests.sources.memory import FakeLedger, Log, Memory, Store, all_rows, memory, registration, rows_of, run_to_end


def ran(planned: Planner) -> Log:
    log = Log()
    run_to_end(log, planned)
    return log


def planner(store: Store, *, bounded: bool = True, **options: object) -> Planner:
    return Planner(memory(store, bounded=bounded, **options), None, NoLedger())


def test_without_a_limit_one_epoch_reads_all_and_ends_the_source() -> None:
    log = ran(planner(Store({"a": 3, "b": 0, "c": 5})))
    assert len(log.offsets) == 2
    assert rows_of(log.read()) == {"a": [0, 1, 2], "c": [0, 1, 2, 3, 4]}
    assert log.offsets[-1].ended and not log.offsets[-1].drained
    assert [finish.channel for finish in log.offsets[-1].finished] == ["a", "b", "c"]


@given(limit=st.integers(1, 10), rows=st.lists(st.integers(1, 20), min_size=1, max_size=5))
def test_every_epoch_but_the_last_fills_half_its_limit_at_least(limit: int, rows: list[int]) -> None:
    log = ran(planner(Store({f"c{n}": count for n, count in enumerate(rows)}), max_rows_per_epoch=limit))
    sizes = [sum(piece.end - piece.start for piece in epoch) for epoch in log.read()]
    assert all(size <= limit for size in sizes)
    # What one channel leaves of its share goes to those after it, so an epoch falls short by rounding only.
    assert all(2 * size >= limit for size in sizes[:-1] if sum(rows) >= limit) or sum(rows) < 2 * limit


def test_a_small_limit_reaches_all_channels_in_turn() -> None:
    log = Log()
    source = planner(Store({"a": 9, "b": 9, "c": 9}), max_rows_per_epoch=1, readers=3)
    for _ in range(6):
        log.plan(source)
    assert sorted(epoch[0].channel for epoch in log.read()) == ["a", "a", "b", "b", "c", "c"]


def test_a_byte_limit_holds_too() -> None:
    class Sized(Memory):
        def advance(self, channel, start, limit):  # type: ignore[no-untyped-def]
            step = super().advance(channel, start, type(limit)(rows=limit.bytes // 10 or 1))
            return type(step)(step.end, step.finished, None, (step.end - start) * 10)

    source = Sized({"uid": "s", "max_bytes_per_epoch": "40"})
    source.store = Store({"a": 10})
    log = ran(Planner(source, None, NoLedger()))
    assert [sum(piece.end - piece.start for piece in epoch) for epoch in log.read()] == [4, 4, 2]


def test_readers_default_to_the_sessions_parallelism(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PARALLELISM, "7")
    assert planner(Store({})).readers == 7
    assert planner(Store({}), readers=3).readers == 3


def test_data_epochs_start_at_whole_multiples_of_the_interval() -> None:
    now = [10_000.3]
    source = memory(Store({"a": 4}), max_rows_per_epoch=1)
    timed = Planner(source, registration(interval_ms=1000), FakeLedger(), clock=lambda: now[0])
    log = Log()
    planned = []
    for tenth in range(40):
        now[0] = 10_000.3 + tenth / 10
        if log.plan(timed) is not None:
            planned.append(round(now[0], 1))
    assert planned == [10_000.3, 10_001.0, 10_002.0, 10_003.0]
    assert log.offsets[-1].ended
    assert inspect.signature(Planner).parameters["clock"].default is time.monotonic, "a clock that nobody sets"


def test_two_sources_of_one_query_agree_on_the_moment() -> None:
    now = [0.0]
    logs = [Log(), Log()]
    known = registration(interval_ms=500)
    sources = [memory(Store({"a": 100}), max_rows_per_epoch=1) for _ in logs]
    planners = [Planner(source, known, FakeLedger(), clock=lambda: now[0]) for source in sources]
    moments: list[list[float]] = [[], []]
    for tick in range(100, 400):
        now[0] = tick / 100
        for number, (log, one) in enumerate(zip(logs, planners, strict=True)):
            # The second starts later, in the middle of an interval.
            if (number == 0 or tick > 130) and log.plan(one) is not None:
                moments[number].append(now[0])
    assert moments[0][1:] == moments[1][1:]


def test_the_interval_delays_no_drain_end_or_available_now_run() -> None:
    ledger = FakeLedger()
    timed = Planner(memory(Store({"a": 9}), max_rows_per_epoch=1), registration(interval_ms=10**9), ledger, lambda: 1.0)
    log = Log()
    assert log.plan(timed) is not None
    assert log.plan(timed) is None
    ledger.accept("drain", "job")
    assert log.plan(timed) == ()
    ledger.accept("final_epoch", value=1)
    assert log.plan(timed) == ()
    assert log.offsets[-1].final == 1

    source = memory(Store({"a": 3}), max_rows_per_epoch=1)
    at_once = Planner(source, registration(interval_ms=10**9), FakeLedger(), lambda: 1.0)
    at_once.prepare_available_now()
    log = ran(at_once)
    assert rows_of(log.read()) == {"a": [0, 1, 2]}


class Promising(Memory):
    """Ends in a drain only once its channels have been read to their ends."""

    asked: int

    def drained(self, unread: Collection[str]) -> bool:
        self.asked += 1
        self.store.ends = True  # nobody sends any more
        return self.asked > 1 and not unread


@pytest.mark.parametrize("now", [False, True])
def test_a_source_may_read_on_in_a_drain_until_it_has_read_what_it_has_promised(now: bool) -> None:
    ledger, log, store = FakeLedger(), Log(), Store({"a": 5}, ends=False)
    source = Promising({"uid": "s", "max_rows_per_epoch": "2", "discovery_interval": "0"})
    source.store, source.always_bounded, source.asked = store, False, 0
    planning = Planner(source, registration(), ledger)
    if now:
        planning.prepare_available_now()
    log.plan(planning)
    ledger.accept("drain", "job")
    store.rows["b"] = 3  # an AvailableNow run had left this to the next one
    for _ in range(20):
        planned = log.plan(planning)
        assert planned is not None or log.offsets[-1].ended or planning.rationed_s > 0 or not now, "its run would end"
    assert log.offsets[-1].drained
    assert rows_of(log.read()) == all_rows(store.rows)


def test_a_drain_ends_the_source_where_it_stands() -> None:
    ledger = FakeLedger()
    store = Store({"a": 9, "b": 9}, ends=False)
    log = Log()
    source = Planner(memory(store, bounded=False, max_rows_per_epoch=4), registration(), ledger)
    log.plan(source)
    before = rows_of(log.read())
    ledger.accept("drain", "job", sequence=5)
    assert log.plan(source) == ()
    assert (log.offsets[-1].ended, log.offsets[-1].drained, log.offsets[-1].control) == (True, True, 5)
    # Also after a restart, and whatever comes in meanwhile.
    store.rows["c"] = 3
    assert log.plan(Planner(memory(store, bounded=False), registration(), ledger)) is None
    assert rows_of(log.read()) == before


def test_each_final_epoch_that_is_asked_for_is_made_once() -> None:
    ledger, log = FakeLedger(), Log()
    source = Planner(memory(Store({"a": 1})), registration(), ledger)
    run_to_end(log, source)
    for asked in (1, 2, 3):
        ledger.accept("final_epoch", value=asked)
        assert log.plan(source) == ()
        assert log.plan(source) is None
        assert log.offsets[-1].final == asked
    # A new planner finds them made.
    assert log.plan(Planner(memory(Store({"a": 1})), registration(), ledger)) is None


def test_a_final_epoch_is_not_made_before_the_source_has_ended() -> None:
    ledger = FakeLedger()
    ledger.accept("final_epoch", value=1)
    log = Log()
    log.plan(Planner(memory(Store({"a": 2}), max_rows_per_epoch=1), registration(), ledger))
    assert log.offsets[-1].final == 0


def test_the_highest_control_sequence_is_stamped_and_never_falls() -> None:
    ledger = FakeLedger()
    ledger.accept("set_config", "job", {"key": "k", "value": 1}, sequence=7)
    log = Log()
    source = Planner(memory(Store({"a": 9}), max_rows_per_epoch=1), registration(lineage=3), ledger)
    log.plan(source)
    ledger.accepted.clear()
    log.plan(source)
    assert [offset.control for offset in log.offsets] == [0, 7, 7]
    assert log.offsets[-1].lineage == 3


def test_flags_beyond_what_the_offset_says_are_not_honoured() -> None:
    """A replay or restore sees what was true then: the ledger's later flags are another time's."""
    ledger, log = FakeLedger(flags=["a", "b"]), Log()
    run_to_end(log, Planner(memory(Store({"a": 2, "b": 2})), registration(), ledger))
    assert rows_of(log.read()) == all_rows({"a": 2, "b": 2})


def test_confirmed_finishes_leave_the_offset_and_are_not_reread() -> None:
    ledger = FakeLedger()
    store = Store({f"c{n}": 1 for n in range(5)})
    log = Log()
    source = Planner(memory(store, max_rows_per_epoch=1), registration(), ledger)
    log.plan(source)
    log.plan(source)
    ledger.flags = ["c0", "c1"]
    log.plan(source)
    assert (log.offsets[-1].confirmed, [finish.channel for finish in log.offsets[-1].finished]) == (2, ["c2"])
    run_to_end(log, Planner(memory(store), registration(), ledger))
    assert rows_of(log.read()) == all_rows(store.rows)


def test_resume_receives_the_known_and_the_finished_channels() -> None:
    calls: list[tuple[list[Channel], frozenset[str]]] = []

    class Resuming(Memory):
        def resume(self, known, finished):  # type: ignore[no-untyped-def]
            calls.append((list(known), finished))

    source = Resuming({"uid": "s"})
    source.store = Store({"a": 1, "b": 4, "c": 1})
    start = SourceOffset("s", running={"b": Running(2, "data of b")}, confirmed=1, sequence=1, control=0)
    one = Planner(source, registration(), FakeLedger(flags=["a"]))
    end = one.next(start)
    one.next(end)
    assert calls == [([Channel("b", None, "data of b")], frozenset({"a"}))]
    assert [finish.channel for finish in end.finished] == ["b", "c"]


@given(
    rows=st.dictionaries(st.sampled_from("abcde"), st.integers(0, 9), max_size=5),
    more=st.dictionaries(st.sampled_from("abcdefg"), st.integers(1, 9), max_size=7),
    limit=st.one_of(st.none(), st.integers(1, 4)),
)
def test_an_available_now_run_reads_what_was_there_when_it_began(
    rows: dict[str, int], more: dict[str, int], limit: int | None
) -> None:
    store = Store(dict(rows), ends=False)
    log = Log()
    run = planner(store, bounded=False, max_rows_per_epoch=limit)
    run.prepare_available_now()
    for name, count in more.items():
        store.rows[name] = store.rows.get(name, 0) + count
    run_to_end(log, run)
    assert rows_of(log.read()) == all_rows(rows)
    # The next run reads the rest, and nothing else.
    run = planner(store, bounded=False, max_rows_per_epoch=limit)
    run.prepare_available_now()
    run_to_end(log, run)
    assert rows_of(log.read()) == all_rows(store.rows)
    assert not log.offsets[-1].ended


def test_an_available_now_run_continues_a_channel_not_listed_now() -> None:
    store = Store({"a": 4}, ends=False)
    log = Log()
    log.plan(planner(store, bounded=False, max_rows_per_epoch=2))

    class Unlisted(Memory):
        always_bounded = False

        def discover(self) -> list[Channel]:
            return []

        def advance(self, channel, start, limit):  # type: ignore[no-untyped-def]
            self.store.rows[channel.id] += 100
            return super().advance(channel, start, limit)

    source = Unlisted({"uid": "s", "max_rows_per_epoch": "2"})
    source.store = store
    run = Planner(source, None, NoLedger())
    run.prepare_available_now()
    run_to_end(log, run)
    assert rows_of(log.read()) == {"a": [0, 1, 2, 3]}


@pytest.mark.parametrize("finished", [0, 99_900])
def test_planning_costs_what_is_running_not_what_there_is(finished: int) -> None:
    names = [f"c{number:06}" for number in range(finished + 100)]
    store = Store(dict.fromkeys(names, 10))
    ledger = FakeLedger(flags=names[:finished])
    start = SourceOffset("s", confirmed=finished, sequence=finished)
    source = Planner(memory(store, max_rows_per_epoch=100, readers=20), registration(), ledger)
    calls, sizes, offset = [], [], start
    while not offset.ended:
        before = store.advances
        offset = source.next(offset)
        calls.append(store.advances - before)
        sizes.append(len(json.dumps(offset.to_json())))
        ledger.flags += [finish.channel for finish in offset.finished]
    assert max(calls) <= 100 / 5 + 20
    assert sum(calls) <= 2 * 100 + 20 * len(calls)
    assert max(sizes) < 20 * 100 + 200
    assert offset.sequence == finished + 100


def test_waiting_channels_are_looked_at_once() -> None:
    store = Store(dict.fromkeys([f"c{number}" for number in range(10_000)], 5))
    source = planner(store, max_rows_per_epoch=4, readers=4)
    log = Log()
    for _ in range(50):
        log.plan(source)
    assert store.advances <= 50 * 8
    assert source.waiting > 9_900
    assert all(len(offset.running) <= 4 for offset in log.offsets)


@pytest.mark.parametrize("target", ["job", "source:s", "source:s/0"])
@pytest.mark.parametrize("until_now", [False, True])
def test_a_pause_is_the_end_of_a_run_until_now_and_of_no_other(target: str, until_now: bool) -> None:
    ledger, log = FakeLedger(), Log()
    planner = Planner(memory(Store({"0": 10})), registration(until_now=until_now), ledger)
    planner.prepare_available_now()
    ledger.accept("pause", target)
    assert log.plan(planner) is not None, "the pause makes an epoch"
    assert log.plan(planner) is None and (planner.rationed_s > 0) is not until_now
    if not until_now:
        ledger.accept("set_config", "job", {"key": "a", "value": 1})
        assert log.plan(planner) is not None, "so does an event during the pause"
        assert log.plan(planner) is None and planner.rationed_s > 0
        ledger.accept("resume", target)
        run_to_end(log, planner)
        assert log.offsets[-1].ended and planner.rationed_s == 0


def test_what_has_changed_since_it_was_read_is_told_when_there_is_more() -> None:
    told: list[list[str]] = []
    changes = Changes(lambda names: told.append(list(names)))
    changes.read({"a": [1, 1], "b": [2, 2], "c": None})
    changes.compare([Channel("a", 0, [1, 1]), Channel("b"), Channel("c", 0, [3, 3]), Channel("new", 0, [4, 4])])
    assert told == []
    changes.compare([Channel("a", 0, [1, 2])])
    changes.compare([Channel("a", 0, [1, 3])])
    changes.compare([Channel("a", 0, [1, 3]), Channel("b", 0, [0, 2])])
    assert told == [["a"], ["a", "b"]]
