"""The compare-and-swap of a log in Kafka: whatever writers propose, and wherever readers begin, all agree."""

from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import given

from spark_ext.errors import StateError
from spark_ext.exchange.entries import Entry, EntryKind, LogState, Run, Segment
from spark_ext.exchange.kafka.order import LogOrder, Record, Stored

WHO = "exchange 'x'"


def read(records: list[Record], start: int = 0) -> LogOrder:
    found = LogOrder(WHO, whole=start == 0)
    for offset in range(start, len(records)):
        found.take(offset, Record.from_bytes(records[offset].to_bytes(), WHO))
    found.check()
    return found


def entry(number: int, reader: str) -> Record:
    body = Entry(EntryKind.REGISTER, consumer=reader, query="q").to_json()
    return Record("entry", number, f"{number}-{reader}", body)


@given(st.data())
def test_all_readers_agree_on_what_counts(data: st.DataObject) -> None:
    """Writers propose after any state that they have seen; states are stored late; the log is deleted up to any."""
    records: list[Record] = []
    order = LogOrder(WHO, whole=True)
    seen, counted = [LogState()], []
    for step in range(data.draw(st.integers(1, 40))):
        state = data.draw(st.sampled_from(seen[-4:]))
        kind = data.draw(st.sampled_from(["entry"] * 4 + ["release", "state"]))
        if kind == "state" and state.last >= 0:
            record = Record("state", state.last, str(step), state.to_json())
        elif kind == "release":
            below = data.draw(st.integers(state.released, state.last + 1))
            record = Record("entry", state.last + 1, str(step), Entry(EntryKind.RELEASE, below=below).to_json())
        else:
            record = entry(state.last + 1, f"reader-{step}")
        before = order.state
        counts = order.take(len(records), record)
        records.append(record)
        assert counts == (record.number == before.last + (record.kind == "entry"))
        if counts and record.kind == "entry":
            counted.append(record.body)
            seen.append(order.state)
    assert [entry.to_json() for entry in order.entries.values()] == counted[order.state.released :]
    assert order.state.last == len(counted) - 1
    starts = {0, order.deletable or 0}
    for start in starts:
        late = read(records, start)
        assert (late.state, late.entries) == (order.state, order.entries)


def test_a_log_that_lost_records_is_refused() -> None:
    states = [LogState()]
    for number in range(4):
        states.append(states[-1].after(Entry(EntryKind.REGISTER, consumer=f"r{number}", query="q")))
    records = [entry(0, "r0"), entry(1, "r1"), Record("state", 1, "s", states[2].to_json()), entry(2, "r2")]
    with pytest.raises(StateError, match="begins with entry 1, and without the state before it"):
        read(records, 1)
    with pytest.raises(StateError, match="has lost entries from 0 on"):
        read(records, 2)
    with pytest.raises(StateError, match="has lost entries"):
        read(records, 4)
    with pytest.raises(StateError, match="has entry 2 after entry 0"):
        read([records[0], records[3]])
    released = entry(3, "r3")
    released = replace(released, body=Entry(EntryKind.RELEASE, below=2).to_json())
    assert read([*records, released], 2).state.released == 2
    assert read([*records, released]).deletable == 2
    with pytest.raises(StateError, match="not one of this release"):
        Record.from_bytes(b'{"version": 2}', WHO)


def test_an_exchange_that_is_put_back_begins_with_all_of_its_entries() -> None:
    """An unfinished attempt does not count, nor what comes after the first that is whole."""
    cut = Entry(EntryKind.CUT, 1, after=3)
    state = LogState(last=8, released=2).after(cut)
    seeds = [Record("seed", 2, "a", Entry(EntryKind.CLAIM, 1).to_json()), Record("seed", 9, "a", cut.to_json())]
    whole = [*seeds, Record("seeded", 9, "a", state.to_json())]
    late = [replace(one, id="b", number=one.number + 1) for one in whole]
    found = read([seeds[0], *late[:2], *whole, late[2], entry(9, "ghost"), entry(10, "next")])
    assert sorted(found.entries) == [2, 9, 10] and found.state.consumers == {"next": "q"}
    assert read(late[:2]).state == LogState()


def test_rows_are_needed_from_the_first_that_is_not_released() -> None:
    def epoch(number: int, *segments: tuple[int, int, int]) -> Record:
        made = tuple(
            Segment(Stored(f"i1-{number}", at, end).name, 1, (Run(0, first, 1, 1),)) for at, first, end in segments
        )
        body = Entry(EntryKind.EPOCH, application="a", epoch=number, rows=(len(made),), segments=made).to_json()
        return Record("entry", number, str(number), body)

    records = [epoch(0, (0, 0, 4), (1, 0, 2)), epoch(1, (0, 7, 9)), epoch(2, (1, 5, 6))]
    assert read(records).first_needed() == {0: 0, 1: 0}
    release = Record("entry", 3, "r", Entry(EntryKind.RELEASE, below=1).to_json())
    assert read([*records, release]).first_needed() == {0: 7, 1: 5}
    release = replace(release, body=Entry(EntryKind.RELEASE, below=3).to_json())
    assert read([*records, release]).first_needed() == {0: 10, 1: 7}, "what no entry names yet stays"
