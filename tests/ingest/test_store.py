"""The gateway's store, with its threads: receipts, bounds, full disks, drains, restarts and replaced processes."""

import errno
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

from spark_ext.ingest import channel, seen
from spark_ext.ingest import store as product
from spark_ext.ingest.channel import OwnedChannel
from spark_ext.ingest.description import DRAIN, GATEWAYS, InboxDescription
from spark_ext.ingest.log import LEASE, channels, lease_of
from spark_ext.ingest.records import Form, Receipt
from spark_ext.ingest.store import Draining, Forgotten, Full, GatewayStore, Unavailable
from spark_ext.storage import GrowingFile, LocalFolder, folder_at
from tests.ingest.ingest_kit import ORDERS, World, request, submit, unlock
from tests.servers.object_store import Bucket
from tests.support.waiting import until

Start = Callable[..., GatewayStore]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
def start(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts of the gateway, in this process."""
    monkeypatch.setattr(product, "TICK", 0.02)
    begun: list[GatewayStore] = []

    def one(description: InboxDescription = ORDERS, gateway: str = "g1") -> GatewayStore:
        begun.append(GatewayStore(description, world.inbox, world.wal, gateway))
        begun[-1].open()
        return begun[-1]

    yield one
    for store in begun:
        store.close()


def send(store: GatewayStore, *bodies: str) -> list[Receipt]:
    waiting = [submit(store, request(body)) for body in bodies]
    return [one.result(30) for one in waiting]


def reason(future: "Future[Receipt]") -> str:
    problem = future.exception(30)
    assert isinstance(problem, Unavailable)
    return str(problem)


def test_g1_what_was_acknowledged_is_in_the_log(world: World, start: Start) -> None:
    store = start()
    receipts = send(store, "a", "b")
    assert receipts[1] == Receipt("disk", 1, 0, "g1:1", exactly_once=False)
    until(lambda: world.all_rows() == ["a", "b"], "the events are in a segment")
    assert submit(store, request("c", identity="1", scheme="pointer")).result(30).exactly_once
    figures = store.figures()
    assert (figures.accepted, figures.acknowledged, figures.draining) == (3, 3, False)
    assert figures.bytes_held > 0 and figures.oldest_unread_s > 1_000
    store.close()
    assert world.rows() == ["c"]
    with pytest.raises(Unavailable, match="the gateway stops"):
        submit(store, request("d"))


def test_figures_continue_after_a_restart(world: World, start: Start) -> None:
    for number in (1, 2):
        store = start()
        send(store, "a")
        store.reject(401)
        figures = store.figures()
        assert (figures.accepted, figures.acknowledged, figures.rejected) == (number, number, {"401": number})
        store.close()
        lease = lease_of(world.inbox.below(f"{GATEWAYS}/g1"))
        assert lease is not None and (lease.rejected, sum(lease.waits)) == ({"401": number}, 1), "one in this process"
    world.inbox.below(f"{GATEWAYS}/g1").delete(LEASE)
    figures = start().figures()
    assert (figures.accepted, figures.acknowledged, figures.rejected) == (2, 2, {}), "what the log knows"


def test_g10_events_are_gone_once_they_are_released(world: World, start: Start) -> None:
    store = start()
    (first,) = send(store, "a")
    assert store.committed(first.token) is False
    until(lambda: world.rows() == ["a"], "the event is in a segment")
    world.log().release(world.log().look().last + 1)
    until(lambda: store.committed(first.token), "the release is known")
    assert store.figures().bytes_held == 0
    assert [store.committed(token) for token in ("g1:1", "g2:0", "x")] == [None, None, None]


def test_a_producer_learns_how_far_it_came(world: World, start: Start) -> None:
    store = start(replace(ORDERS, scheme="sequence"))
    for first in (1, 2):
        submit(store, request("a\nb", form=Form.NDJSON, events=2, producer="p", first=first)).result(30)
    assert store.producer("q") == (None, None) and store.producer("p") == (3, None)
    until(lambda: len(world.all_rows()) == 4, "the events are in a segment")
    world.log().release(world.log().look().last + 1)
    until(lambda: store.producer("p") == (3, 3), "the release is known")
    store.close()
    later = start(replace(ORDERS, scheme="sequence"))
    assert later.producer("p") == (3, 3)
    for first in (4, 2):
        submit(later, request("c", producer="p", first=first)).result(30)
    assert later.producer("p") == (4, 3)
    later.close()
    assert start(replace(ORDERS, scheme="sequence")).producer("p")[0] == 4, "a number that comes late is not the newest"


def test_a_number_that_may_be_a_repeat_or_late_is_refused(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seen, "MOST_RANGES", 2)
    store = start(replace(ORDERS, scheme="sequence"))
    for first in (0, 2, 4, 3):
        submit(store, request("a", producer="p", first=first)).result(30)
    with pytest.raises(Forgotten, match="number 0 is below 1, and many gaps"):
        submit(store, request("a", producer="p", first=0))
    submit(store, request("a", producer="p", first=1)).result(30)
    monkeypatch.setattr(channel, "PRODUCERS", 1)
    submit(store, request("a", producer="q")).result(30)
    assert (store.producer("p"), store.producer("q")) == ((None, None), (0, None))


def test_a_receipt_says_what_the_gateway_knows_to_be_repeats(
    world: World, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(product, "RECENT", 1)
    store, hour = start(replace(ORDERS, dedup_window=3_600_000)), 3_600_000_000
    sent = [
        *[(request("a", identity="1", scheme="pointer"), repeats) for repeats in (0, 1, 1)],
        (request("a", identity="1", scheme="pointer")._replace(at=request("").at + hour + 1), 0),  # behind the window
        (request("b", identity="1", scheme="pointer"), 0),  # another body: the job decides
        *[(request("a\nb", form=Form.NDJSON, events=2, scheme="sequence", producer="p"), n) for n in (0, 2)],
        *[(request("a"), 0)] * 2,
        (request("a", identity="1", scheme="pointer"), 0),  # forgotten
    ]
    assert [submit(store, one).result(30).repeats for one, _ in sent] == [repeats for _, repeats in sent]
    store.close()
    assert len(world.rows()) == 12, "all are stored: the job decides"


def test_g9_a_full_inbox_says_when_to_try_again(world: World, start: Start) -> None:
    store = start(InboxDescription("orders", "inbox-1", "job-1", max_bytes=10_000))
    send(store, "x" * 5_000)
    with pytest.raises(Full) as full:
        submit(store, request("x" * 5_000))
    assert 1 <= full.value.retry_after <= 60
    until(lambda: world.rows(), "the events are in a segment")
    world.log().release(world.log().look().last + 1)
    until(lambda: store.figures().bytes_held == 0, "they are released")
    send(store, "x" * 5_000)


def test_a_full_disk_acknowledges_nothing_and_is_left_by_itself(world: World, start: Start) -> None:
    store = start()
    send(store, "a")
    fails = OSError(errno.ENOSPC, "No space left on device")
    with patch.object(GrowingFile, "_write", side_effect=fails):
        assert "No space left" in reason(submit(store, request("b")))
    until(lambda: accepts(store, "c"), "it accepts again")
    store.close()
    assert world.rows() == ["a", "c"]


def accepts(store: GatewayStore, body: str) -> bool:
    try:
        return submit(store, request(body)).exception(30) is None
    except Unavailable:
        return False


def test_after_a_sync_has_failed_its_file_is_not_used_again(world: World, start: Start) -> None:
    store = start()
    syncs: list[Path] = []

    def fail_once(file: GrowingFile) -> None:
        syncs.append(file.path)
        if len(syncs) == 1:
            raise OSError(errno.EIO, "Input/output error")

    with patch.object(GrowingFile, "_sync", fail_once):
        assert "Input/output error" in reason(submit(store, request("a")))
        until(lambda: accepts(store, "b"), "it accepts again")
    assert syncs.count(syncs[0]) == 1
    store.close()
    assert world.rows() == ["b"]


def test_while_segments_cannot_be_written_requests_wait_on_the_disk(world: World, start: Start) -> None:
    store = start()
    with patch.object(OwnedChannel, "_write", side_effect=OSError("the store does not answer")) as away:
        send(store, "a")
        until(lambda: away.call_count > 1, "a segment was tried twice")
        send(store, "b")
        until(lambda: away.call_count > 3, "and again")
    until(lambda: world.all_rows() == ["a", "b"], "the store is back")


def test_g5_g12_a_drain_seals_the_log_with_all_that_it_had(world: World, start: Start) -> None:
    store = start()
    send(store, "a", "b")
    assert not store.wait_sealed(0)
    world.inbox.write(DRAIN, json.dumps({"start": "1"}))
    assert store.wait_sealed(30)
    with pytest.raises(Draining):
        submit(store, request("c"))
    assert store.figures().draining
    store.close()
    assert world.rows() == ["a", "b"] and world.log().look().sealed is not None
    lease = lease_of(world.inbox.below("gateways/g1"))
    assert lease is not None and lease.state == "sealed"


def test_a_start_while_the_job_drains_seals_what_is_left_and_begins_nothing(world: World, start: Start) -> None:
    world.inbox.write(DRAIN, "{}")
    assert start().wait_sealed(0) and channels(world.inbox) == {}
    world.inbox.delete(DRAIN)
    store = start()
    send(store, "a")
    store.close()
    world.inbox.write(DRAIN, "{}")
    assert start().wait_sealed(30) and world.log().look().sealed is not None
    assert world.rows() == ["a"]
    with pytest.raises(Draining):
        submit(start(), request("b"))


def test_after_a_seal_the_gateway_begins_a_new_channel(world: World, start: Start) -> None:
    store = start()
    world.inbox.write(DRAIN, "{}")
    assert store.wait_sealed(30)
    store.close()
    world.inbox.delete(DRAIN)
    later = start()
    assert send(later, "a")[0].token == "g1~2:0"
    later.close()
    assert {*channels(world.inbox)} == {"g1", "g1~2"}
    assert world.rows("g1~2") == ["a"]


def test_g6_a_process_that_was_replaced_acknowledges_nothing(
    world: World, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(product, "TICK", 60)  # it does not find out by itself
    old = start()
    send(old, "a")
    assert old._channel is not None
    unlock(old._channel)
    new = start()
    assert "incarnation 2 of the gateway has claimed its log" in reason(submit(old, request("b")))
    with pytest.raises(Unavailable, match="has claimed its log"):
        submit(old, request("c"))
    send(new, "d")
    new.close()
    assert [one for one in world.rows() if one != "b"] == ["a", "d"]


def test_without_a_write_ahead_log_each_group_is_a_segment(world: World, start: Start) -> None:
    store = start(replace(ORDERS, ack="store"))
    assert send(store, "a")[0].level == "store" and world.rows() == ["a"]
    with patch.object(LocalFolder, "create_once", side_effect=OSError("the store does not answer")):
        assert "the store does not answer" in reason(submit(store, request("b")))
    until(lambda: accepts(store, "c"), "it accepts again")
    assert world.rows() == ["b", "c"], "it was not acknowledged, and may be there"
    unlocked = start(replace(ORDERS, ack="store"))
    with pytest.raises(Unavailable, match="has claimed its log"):
        until(lambda: reason(submit(store, request("d"))) == "", "the older process is fenced")
    send(unlocked, "e")
    assert world.rows() == ["e"] and not world.wal.exists()


@pytest.mark.parametrize("ack", ["disk", "store"])
def test_an_inbox_in_an_object_store(
    world: World, start: Start, bucket: Bucket, monkeypatch: pytest.MonkeyPatch, ack: str
) -> None:
    bucket.use(monkeypatch)
    world.inbox = folder_at(f"{bucket.uri}/state/inboxes/orders")
    store = start(replace(ORDERS, ack=ack))
    send(store, "a", "b")
    until(lambda: world.all_rows() == ["a", "b"], "the events are in segments")
    world.log().release(world.log().look().last + 1)
    until(lambda: store.figures().bytes_held == 0, "they are released")
    if ack == "disk":  # whose log on the disk is locked by the process that has it
        store.close()
    again = start(replace(ORDERS, ack=ack))
    send(again, "c")
    with pytest.raises(Unavailable, match="has claimed its log" if ack == "store" else "stops"):
        until(lambda: reason(submit(store, request("late"))) == "", "the older one is refused by a conditional put")
    until(lambda: world.rows() == ["c"], "what is read now")
    again.close()
    world.inbox.write(DRAIN, "{}")
    assert start(replace(ORDERS, ack=ack)).wait_sealed(60)
    assert world.log().look().sealed is not None and world.log().numbers()[0] >= 2, "what was released is gone"


def test_a_promise_of_the_table_waits_for_the_release(world: World, start: Start) -> None:
    store = start(replace(ORDERS, ack="table"))
    first, second = submit(store, request("a")), submit(store, request("b"))
    until(lambda: world.all_rows() == ["a", "b"], "the events are in a segment")
    assert not first.done()
    third = submit(store, request("c"))
    world.log().release(world.log().look().last + 1)
    assert (first.result(30).level, second.result(30).token) == ("table", "g1:1")
    store.close()
    assert "before the job has committed" in reason(third)
    assert world.rows() == ["c"]


def test_without_a_promise_the_answer_does_not_wait(world: World, start: Start) -> None:
    store = start(replace(ORDERS, ack="none"))
    with patch.object(GrowingFile, "_sync", side_effect=OSError("nothing is synced")):
        assert submit(store, request("a")).result(0).level == "none"
        until(lambda: store.figures().acknowledged == 1, "it is in the write-ahead log")
    store.close()
    assert world.rows() == ["a"]


def test_what_is_kept_for_a_checkpoint_is_written_when_the_job_asks(world: World, start: Start) -> None:
    store = start(replace(ORDERS, persist="checkpoint"))
    waiting = [submit(store, request(body)) for body in "abc"]
    log = world.log()
    log.request(1)
    assert [one.result(30).level for one in waiting] == ["disk"] * 3
    until(lambda: log.answered() == 1, "the gateway has answered")
    assert world.rows() == ["a", "b", "c"] and log.look().last == 1, "one segment"
    late = submit(store, request("d"))
    assert not late.done()
    world.inbox.write(DRAIN, "{}")
    assert store.wait_sealed(30) and late.result(30).level == "disk"
    assert world.rows() == ["d"]


def test_receipts_come_in_order_of_arrival_from_many_threads(world: World, start: Start) -> None:
    store = start()

    def sender(name: int) -> None:
        for number in range(50):
            send(store, f"{name}-{number}")

    threads = [threading.Thread(target=sender, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    store.close()
    rows = world.rows()
    for name in range(4):
        assert [one for one in rows if one.startswith(f"{name}-")] == [f"{name}-{number}" for number in range(50)]


PROGRAM = """
import sys
from pathlib import Path
from tests.ingest.ingest_kit import ORDERS, World, request, submit
from spark_ext.ingest.store import GatewayStore
world = World(Path(sys.argv[1]))
store = GatewayStore(ORDERS, world.inbox, world.wal, "g1")
store.open()
for number in range(100_000):
    submit(store, request(str(number))).result(30)
    print(number, flush=True)
"""


def test_g1_g8_kill_9_loses_nothing_that_was_acknowledged(world: World, tmp_path: Path, start: Start) -> None:
    with subprocess.Popen([sys.executable, "-c", PROGRAM, tmp_path], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            acknowledged = [process.stdout.readline().strip() for _ in range(20)]
        finally:
            process.send_signal(signal.SIGKILL)
            acknowledged += process.communicate()[0].split()
    start().close()
    rows = world.rows()
    assert rows[: len(acknowledged)] == acknowledged and len(rows) <= len(acknowledged) + 1
