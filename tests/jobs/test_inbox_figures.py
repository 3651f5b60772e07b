"""What is shown of an inbox: sums over its gateways, by their leases and logs."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from spark_ext.ingest.log import Entry, EntryKind, Lease, LogState
from spark_ext.ingest.parts import Found, Part, Span
from spark_ext.ingest.seen import Identities
from spark_ext.jobs.linking.inbox_figures import GatewayLook, LeftOut, summed
from spark_ext.views.page.figures import inboxes_of
from tests.support.inboxes import Inbox, request

NOW = 1_000_000
OPEN, SEALED = LogState(last=5, total=90, stored=1_000), LogState(last=5, total=90, stored=1_000, sealed=5)
REFUSED = {"401": 6, "429": 1}
LEASE = Lease(1, "s", 0, "h", 1, "accepting", 100, 95, 300, 5_000, 8.0, REFUSED, [0, 98, 1, 0, 1])
FIRST = Entry(EntryKind.SEGMENT, "s", 1, stored=700, bytes=200, rows=4, first_at=(NOW - 30_000) * 1_000)


@pytest.mark.parametrize(
    ("look", "state", "held", "oldest"),
    [
        (GatewayLook(LEASE, OPEN, None, False, 2.0), "accepting", 300, 10.0),
        (GatewayLook(LEASE, OPEN, None, True, 2.0), "silent", 300, 10.0),
        (GatewayLook(replace(LEASE, state="draining"), OPEN, None, False, 2.0), "unavailable", 300, 10.0),
        (GatewayLook(replace(LEASE, oldest_unread=0.0, bytes=0), OPEN, None, False, 2.0), "accepting", 0, None),
        (GatewayLook(None, OPEN, None, False, 2.0), "unavailable", 0, None),
        # All that these have is in their logs, and their leases are old.
        (GatewayLook(replace(LEASE, state="closed"), OPEN, FIRST, False, 2.0), "stopped", 500, 30.0),
        (GatewayLook(LEASE, SEALED, FIRST, True, 2.0), "sealed", 500, 30.0),
        (GatewayLook(LEASE, SEALED, None, True, 2.0), "sealed", 0, None),
    ],
)
def test_what_a_gateway_is_and_holds(look: GatewayLook, state: str, held: int, oldest: float | None) -> None:
    found = summed("orders", [look], Found(), NOW)
    assert {name for name, number in found.gateways.items() if number} == {state}
    assert (found.bytes, found.oldest_s) == (held, oldest)
    counts = state != "sealed" or held
    assert found.max_bytes == (look.lease.max_bytes if look.lease is not None and counts else 0)


def test_the_figures_of_all_gateways_are_added_up() -> None:
    one = GatewayLook(LEASE, OPEN, None, False, 2.0)
    # It was killed: its log has more than its last lease.
    killed = GatewayLook(replace(LEASE, accepted=80, acknowledged=80, oldest_unread=1.0), OPEN, None, True, 2.0)
    found = summed("orders", [one, one, killed], Found(3, 2, 1), NOW)
    assert (found.accepted, found.acknowledged, found.rejected) == (290, 280, {"401": 18, "429": 3})
    assert (found.ack_p50_ms, found.ack_p99_ms) == (2, 4), "of the two that accept: of 100 each 98 in 2 ms, 99 in 4 ms"
    assert (found.bytes, found.max_bytes, found.oldest_s) == (900, 15_000, 10.0)
    assert (found.repeats, found.conflicts, found.old) == (3, 2, 1)
    assert found.gateways == {"accepting": 2, "unavailable": 0, "silent": 1, "stopped": 0, "sealed": 0}
    none = summed("orders", [], Found(), NOW)
    assert not sum(none.gateways.values()) and (none.accepted, none.oldest_s, none.ack_p99_ms) == (0, None, None)
    # The ledger gives back what is shown, and leaves out what it cannot read.
    said = json.loads(json.dumps([found.to_json(), none.to_json()]))
    assert inboxes_of({"inboxes": said}) == (found, none)
    wrong = [{**said[0], name: value} for name, value in (("accepted", "x"), ("gateways", 3), ("rejected", 3))]
    for broken in (3, [3], wrong, [{"name": "orders"}]):
        assert inboxes_of({"inboxes": broken}) == ()
    assert inboxes_of({}) == ()


def test_a_log_is_asked_for_what_nobody_has_read(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path)
    inbox.push("g1", [request("a")], [request("b")])
    inbox.seal("g1")
    log = inbox.place.log("g1")
    for below, rows in ((0, 2), (2, 1), (3, 0), (9, 0)):
        log.release(below, 0)
        look = GatewayLook.at(None, log, silent=False, age=0.0)
        size, age = look.held(0)
        assert (size > 0, age is not None) == (rows > 0, rows > 0), below
        assert look.unread is None or look.unread.total == 3 - rows


def test_the_newest_decision_says_what_was_left_out(tmp_path: Path) -> None:
    place = Inbox(tmp_path).place
    left_out = LeftOut(place)
    assert left_out.look() == Found()
    for span, found in ((Span(0, 8), Found(2)), (Span(8, 9), Found(3, 1)), (Span(9, 10), Found(5, 1, 1))):
        place.decisions.write(span.name, Part(span, Identities.none(), {}, found=found).encode())
        assert left_out.look() == found
    place.decisions.write(Span(10, 11).name, b"damaged")
    assert left_out.look() == Found(5, 1, 1), "as long as it cannot be read"
