"""The source `http_ingest` without Spark: plans, repeats, drains and refusals, over logs that gateways have written."""

import json
import pickle
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_ext.clients import schema_registry
from spark_ext.errors import ConfigurationError, DataError, OffsetError, StateError, StorageError
from spark_ext.gateway.inbox import Inbox as GatewayInbox
from spark_ext.ingest.place import InboxPlace
from spark_ext.model.offsets import Range
from spark_ext.sources import http_ingest
from spark_ext.sources.contract import BadRow, Channel, Limit
from spark_ext.sources.http_ingest import HttpIngestSource
from spark_ext.sources.runtime.planner import LedgerView, NoLedger, Planner
from spark_ext.storage import LocalFolder
from tests.servers.schema_registry import SchemaRegistry
from tests.sources.memory import FakeLedger, Log, registration
from tests.support.inboxes import Inbox, request
from tests.support.waiting import until


@pytest.fixture
def inbox(tmp_path: Path) -> Inbox:
    return Inbox(tmp_path)


def source(inbox: Inbox, **options: object) -> HttpIngestSource:
    given = {"uid": "s", "path": str(inbox.folder), "discovery_interval": "0"}
    made = HttpIngestSource({**given, **{name: str(value) for name, value in options.items()}})
    made.declared = made.schema()
    return made


def planner(inbox: Inbox, ledger: LedgerView | None = None, **options: object) -> Planner:
    of_job = None if ledger is None else registration()
    return Planner(source(inbox, **options), of_job, ledger or NoLedger())


def rows(
    inbox: Inbox, pieces: tuple[Range, ...], bad: list[BadRow] | None = None, **options: object
) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for piece in pieces:
        reader = pickle.loads(pickle.dumps(source(inbox, **options)))  # as it reaches a task
        reader._collect = None if bad is None else bad.append
        for batch in reader.read(Channel(piece.channel, None, piece.data), piece.start, piece.end):
            found += batch.to_pylist()
    return found


def bodies(inbox: Inbox, *epochs: tuple[Range, ...]) -> list[str]:
    return [row["body"].decode() for pieces in epochs for row in rows(inbox, pieces)]


def all_of(inbox: Inbox, **options: object) -> Log:
    log, planning = Log(), planner(inbox, None, **options)
    while log.plan(planning) is not None:
        pass
    return log


# -- what is read -----------------------------------------------------------------------------------------------------


def test_an_event_is_a_row_with_what_was_sent(inbox: Inbox) -> None:
    sent = request("{}", "a", at=5, content_type="application/json", path="eu", query="x=1", headers=(("ce-id", "7"),))
    inbox.push("g1", [sent])
    (row,) = rows(inbox, all_of(inbox).read()[0])
    assert row.pop("received_at").timestamp() == pytest.approx(sent.at / 1e6)
    assert row == {
        "body": b"{}",
        "content_type": "application/json",
        "headers": [("ce-id", "7")],
        "path": "eu",
        "query": "x=1",
        "event_id": "a",
        "gateway": "g1",
        "sequence": 0,
    }
    assert list(rows(inbox, all_of(inbox).read()[0])[0]) == list(source(inbox).schema().names)


def test_g3_a_gateways_events_come_in_their_order_whatever_the_limits(inbox: Inbox) -> None:
    inbox.push("g1", *([request(f"{entry}.{row}") for row in range(5)] for entry in range(4)))
    log = all_of(inbox, max_rows_per_epoch=3)
    assert bodies(inbox, *log.read()) == [f"{entry}.{row}" for entry in range(4) for row in range(5)]
    assert {len(bodies(inbox, pieces)) for pieces in log.read()} == {3, 2}


def test_g2_an_identity_is_read_once_over_all_gateways(inbox: Inbox) -> None:
    inbox.send("g1", "a", "b", "a")
    inbox.send("g2", "b", "c")
    log = all_of(inbox)
    inbox.send("g1", "c", "d")
    planning = planner(inbox)
    while log.plan(planning) is not None:
        pass
    assert sorted(bodies(inbox, *log.read())) == ["a", "b", "c", "d"]


def test_g7_an_identity_is_known_for_the_window(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path, dedup_window=60_000)
    seconds = 1_000_000
    inbox.push("g1", [request("a", "a", at=0)], [request("a", "a", at=60 * seconds)])
    inbox.push("g2", [request("a", "a", at=61 * seconds), request("a", "a", at=90 * seconds)])
    read = [row for pieces in all_of(inbox).read() for row in rows(inbox, pieces)]
    assert [row["sequence"] for row in read] == [0, 0], "at 0 s, and again after more than 60 s"


def test_g2_events_without_an_identity_are_all_read(inbox: Inbox) -> None:
    inbox.push("g1", [request("a"), request("a")])
    assert bodies(inbox, *all_of(inbox).read()) == ["a", "a"]


def test_g2_another_body_under_an_identity_is_a_bad_row(inbox: Inbox) -> None:
    inbox.push("g1", [request("a", "1"), request("b", "1"), request("c", "2")])
    (pieces,) = all_of(inbox).read()
    bad: list[BadRow] = []
    assert [row["body"] for row in rows(inbox, pieces, bad)] == [b"a", b"c"]
    assert [(row.position, row.raw) for row in bad] == [({"gateway": "g1", "sequence": 1, "event_id": "1"}, b"b")]
    with pytest.raises(DataError, match="another body"):
        rows(inbox, pieces)


def test_what_is_decided_is_durable_before_it_is_planned_and_never_changes(inbox: Inbox) -> None:
    inbox.send("g1", "a", "b")
    first = Log()
    first.plan(planner(inbox))
    assert any((inbox.folder / "decisions").iterdir())
    # The plan never became an epoch, and other events have come: the next planner reads the same.
    inbox.send("g2", "b", "a", "c")
    second = all_of(inbox)
    read = {row["body"]: row["gateway"] for pieces in second.read() for row in rows(inbox, pieces)}
    assert read == {b"a": "g1", b"b": "g1", b"c": "g2"}


def test_many_bytes_are_decided_in_parts(inbox: Inbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_ingest, "MOST_BYTES", 1)
    inbox.push("g1", *([request(str(number), str(number))] for number in range(5)))
    inbox.push("g2", *([request(str(number), str(number))] for number in range(3, 8)))
    assert sorted(bodies(inbox, *all_of(inbox).read())) == [str(number) for number in range(8)]


def test_nothing_is_planned_that_could_not_be_decided(inbox: Inbox, monkeypatch: pytest.MonkeyPatch) -> None:
    inbox.send("g1", "a", "a")
    planned = source(inbox)
    (channel,) = planned.discover()
    with monkeypatch.context() as refused:
        refused.setattr(LocalFolder, "create_once", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            planned.advance(channel, channel.begin, Limit())
    end = planned.advance(channel, channel.begin, Limit()).end
    assert bodies(inbox, (Range(channel.id, channel.data, channel.begin, end),)) == ["a"]


def test_what_waits_in_the_memory_of_a_gateway_is_asked_for(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path, persist="checkpoint")
    inbox.send("g1", "a")
    log, planning, gateway = Log(), planner(inbox), inbox.place.log("g1")
    log.plan(planning)
    first = gateway.requested()
    log.plan(planning)
    assert gateway.requested() == first > 0, "once, until it is answered"
    ahead = first + 3_600_000
    gateway.request(ahead)  # by a driver whose clock was an hour ahead
    gateway.answer(ahead)
    log.plan(planning)
    assert gateway.requested() > ahead


STEPS = st.one_of(
    st.tuples(
        st.just("send"), st.sampled_from(["g1", "g2", "g3"]), st.lists(st.integers(0, 9), min_size=1, max_size=6)
    ),
    st.tuples(st.just("plan"), st.integers(1, 5), st.booleans()),
    st.tuples(st.just("crash"), st.booleans(), st.none()),
    st.tuples(st.just("seal"), st.sampled_from(["g1", "g2"]), st.none()),
)


@pytest.mark.slow(5, "each history syncs what gateways and planners write")
@given(steps=st.lists(STEPS, max_size=14))
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_g2_g3_g8_each_event_once_in_its_order_through_any_history(tmp_path: Path, steps: list[Any]) -> None:
    shutil.rmtree(tmp_path, ignore_errors=True)
    inbox, log = Inbox(tmp_path), Log()
    planning, sent = planner(inbox), dict[str, list[str]]()
    for kind, what, more in steps:
        if kind == "send":
            inbox.send(what, *map(str, more))
            sent.setdefault(what, []).extend(map(str, more))
        elif kind == "plan":
            planning = planner(inbox, max_rows_per_epoch=what)
            log.plan(planning)
        elif kind == "crash":
            planning = planner(inbox)
            if what and len(log.offsets) > 1:  # Spark has not logged the newest
                log.offsets.pop()
        elif what in sent:
            inbox.seal(what)
    while log.plan(planning) is not None:
        pass
    read = [row for pieces in log.read() for row in rows(inbox, pieces)]
    assert sorted(row["body"].decode() for row in read) == sorted({one for found in sent.values() for one in found})
    places = [(row["gateway"], row["sequence"]) for row in read]
    for gateway in {name for name, _ in places}:
        mine = [number for name, number in places if name == gateway]
        assert mine == sorted(mine)
    assert bodies(inbox, *log.read()) == [row["body"].decode() for row in read], "a replay has the same rows"


# -- gateways ---------------------------------------------------------------------------------------------------------


def test_a_gateway_that_comes_later_is_read_from_its_first_event(inbox: Inbox) -> None:
    log, planning = Log(), planner(inbox)
    assert log.plan(planning) is None
    inbox.send("g1", "a")
    log.plan(planning)
    inbox.send("g2", "b")
    log.plan(planning)
    assert bodies(inbox, *log.read()) == ["a", "b"]


def test_g5_a_sealed_gateway_is_finished_and_begins_again_as_another_channel(inbox: Inbox) -> None:
    inbox.send("g1", "a")
    inbox.seal("g1")
    log = all_of(inbox)
    assert [finish.channel for finish in log.offsets[-1].finished] == ["g1"] and not log.offsets[-1].ended
    inbox.send("g1", "b")
    planning = planner(inbox)
    log.plan(planning)
    assert bodies(inbox, *log.read()) == ["a", "b"]
    assert list(log.offsets[-1].running) == ["g1~2"]


def test_the_lag_is_what_comes_behind_a_position(inbox: Inbox) -> None:
    inbox.push("g1", [request("a"), request("b")], [request("c")])
    log, planning = Log(), planner(inbox, max_rows_per_epoch=1)
    log.plan(planning)
    assert planning.lag(log.offsets[-1]) == 2
    assert [source(inbox).lag(Channel("g1"), position) for position in ([0, 0], [2, 0], [3, 0])] == [3, 1, 0]


def test_a_run_until_now_reads_what_is_there_when_it_begins(inbox: Inbox) -> None:
    inbox.send("g1", "a")
    log, planning = Log(), planner(inbox, max_rows_per_epoch=1)
    planning.prepare_available_now()
    inbox.send("g1", "b")
    inbox.send("g2", "c")
    while log.plan(planning) is not None:
        pass
    assert bodies(inbox, *log.read()) == ["a"]


def test_a_run_until_now_continues_behind_what_is_released(inbox: Inbox) -> None:
    inbox.send("g1", "a")
    log = all_of(inbox)
    inbox.place.log("g1").release(2)
    inbox.send("g1", "b")
    planning = planner(inbox)
    planning.prepare_available_now()
    log.plan(planning)
    assert bodies(inbox, log.epoch(2)) == ["b"]


# -- a drain ----------------------------------------------------------------------------------------------------------


def drained(inbox: Inbox, *, now: bool = False) -> tuple[Log, Planner]:
    """A job that is drained, after it has read an event."""
    ledger, log = FakeLedger(), Log()
    inbox.send("g1", "a")
    planning = planner(inbox, ledger)
    log.plan(planning)
    if now:
        planning.prepare_available_now()
    ledger.accept("drain", "job")
    log.plan(planning)
    return log, planning


def until_ended(log: Log, planning: Planner) -> None:
    def ended() -> bool:
        log.plan(planning)
        return log.offsets[-1].ended

    until(ended, "the end of the source")


@pytest.mark.parametrize("now", [False, True])
def test_g12_a_drain_asks_gateways_to_seal_and_reads_all_that_they_had(inbox: Inbox, now: bool) -> None:
    log, planning = drained(inbox, now=now)
    assert json.loads((inbox.folder / "drain.json").read_text())["start"] == 0
    inbox.send("g1", "b")
    inbox.send("g2", "c")
    for _ in range(300):
        log.plan(planning)
    assert not log.offsets[-1].ended
    assert not now or planning.rationed_s > 0, "an AvailableNow run would end"
    inbox.seal("g1")
    inbox.seal("g2")
    until_ended(log, planning)
    assert sorted(bodies(inbox, *log.read())) == ["a", "b", "c"]
    assert log.offsets[-1].drained and {one.channel for one in log.offsets[-1].finished} == {"g1", "g2"}


def test_g12_a_drain_continues_after_a_restart(inbox: Inbox) -> None:
    log, _ = drained(inbox)
    inbox.send("g1", "b")
    inbox.seal("g1")
    again = Planner(source(inbox), registration(drain=True), FakeLedger())
    until_ended(log, again)
    assert bodies(inbox, *log.read()) == ["a", "b"]


def test_g12_a_drain_without_gateways_ends(inbox: Inbox) -> None:
    ledger, log = FakeLedger(), Log()
    planning = planner(inbox, ledger)
    ledger.accept("drain", "job")
    until_ended(log, planning)


# -- refusals ---------------------------------------------------------------------------------------------------------


def test_a_folder_without_an_inbox_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="does not exist"):
        HttpIngestSource({"uid": "s", "path": str(tmp_path)}).schema()


def test_an_inbox_of_another_job_is_refused(inbox: Inbox, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="belongs to another job"):
        inbox.place.refuse_other("other")
    with pytest.raises(ConfigurationError, match="belongs to another job"):
        Inbox(tmp_path, job_id="other")


def test_a_copy_of_an_inbox_under_another_name_is_refused(inbox: Inbox) -> None:
    copy = shutil.copytree(inbox.folder, inbox.folder.parent / "copy")
    refusal = "the folder is that of inbox 'orders': it was copied"
    with pytest.raises(StateError, match=refusal):
        InboxPlace(str(copy), "x").register(replace(inbox.about, name="copy"))
    with pytest.raises(StateError, match=refusal):
        GatewayInbox(str(inbox.folder.parents[1]), "copy", "g1", None, None).open()


def test_another_log_under_the_name_of_one_that_was_read_is_refused(inbox: Inbox) -> None:
    inbox.send("g1", "a")
    log = all_of(inbox)
    shutil.rmtree(inbox.folder / "gateways")
    with pytest.raises(OffsetError, match="gateway 'g1' is not the one that was read: it was deleted\n"):
        log.plan(planner(inbox))
    shutil.rmtree(inbox.wal)
    inbox.send("g1", "a")
    with pytest.raises(OffsetError, match="it was deleted, and made again"):
        log.plan(planner(inbox))


def test_g11_a_position_before_what_is_kept_is_refused(inbox: Inbox) -> None:
    inbox.send("g1", "a")
    log = all_of(inbox)
    inbox.send("g1", "b")
    inbox.place.log("g1").release(4, 3)
    with pytest.raises(OffsetError, match="entries 2 to 2 of gateway 'g1' have been released"):
        log.plan(planner(inbox))


@pytest.mark.parametrize("more", [0, 3])
def test_g11_a_position_behind_an_older_folder_is_refused(inbox: Inbox, tmp_path: Path, more: int) -> None:
    inbox.send("g1", "a")
    for one in inbox.folder, inbox.wal:
        shutil.copytree(one, tmp_path / "backup" / one.name)
    inbox.send("g1", "b")
    log = all_of(inbox)
    for one in inbox.folder, inbox.wal:
        shutil.rmtree(one)
        shutil.move(tmp_path / "backup" / one.name, one)
    http_ingest.opened.cache_clear()  # as in a new process
    inbox.push("g1", *[[request("c", "c")]] * more)
    with pytest.raises(OffsetError, match="read gateway 'g1' up to entry 3, and the inbox's folder does not know"):
        log.plan(planner(inbox))


def test_g11_a_source_that_begins_is_refused_once_something_is_gone(inbox: Inbox) -> None:
    inbox.push("g1", [request("a")], [request("b")])
    inbox.place.log("g1").release(2, 0)
    assert bodies(inbox, *all_of(inbox).read()) == ["a", "b"], "a savepoint still needs it"
    inbox.place.log("g1").release(2)
    with pytest.raises(StateError, match="below 2 have been released"):
        all_of(inbox)
    assert bodies(inbox, *all_of(inbox, starting="kept").read()) == ["b"]


def test_a_channel_cannot_be_sent_elsewhere(inbox: Inbox) -> None:
    with pytest.raises(ConfigurationError, match="cannot be sent to another position"):
        source(inbox).seek(Channel("g1"), [0, 0], [1, 0])


def test_metadata_belong_to_typed_rows(inbox: Inbox) -> None:
    with pytest.raises(ConfigurationError, match="have their metadata as columns"):
        source(inbox, metadata=True)


def test_positions_are_those_of_the_log(inbox: Inbox) -> None:
    inbox.push("g1", [request("a"), request("b")])
    step = source(inbox).advance(Channel("g1"), [0, 0], Limit(rows=1))
    assert (step.end, step.rows, step.finished) == ([1, 1], 1, False)


# -- bodies of a schema registry --------------------------------------------------------------------------------------

FIRST = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
STATE = {"name": "state", "type": "string", "default": "new"}
SECOND = {**FIRST, "fields": [*FIRST["fields"], STATE]}
PROTO = 'syntax = "proto3"; message Order { int64 id = 1; string state = 2; }'
PROTO_2 = 'syntax = "proto3"; message Order { int64 id = 1; }'


@pytest.fixture
def schemas(monkeypatch: pytest.MonkeyPatch) -> Iterator[SchemaRegistry]:
    monkeypatch.setattr(schema_registry, "_kept", {})
    with SchemaRegistry() as there:
        yield there


def framed(id: int, content: bytes) -> bytes:
    """A body in Confluent's wire format."""
    return b"\0" + id.to_bytes(4, "big") + content


def test_bodies_in_avro_become_the_columns_of_the_pinned_schema(inbox: Inbox, schemas: SchemaRegistry) -> None:
    first, second = (schemas.register("orders", json.dumps(one)) for one in (FIRST, SECOND))
    bodies = {
        "old": framed(first, b"\2"), "{}": b"{}", "new": framed(second, b"\4\10sent"),
        "long": framed(first, b"\2\2"), "none": framed(99, b"\2"),
    }  # fmt: skip
    sent = [request("", name)._replace(body=body, content_type="application/avro") for name, body in bodies.items()]
    inbox.push("g1", sent)
    options = {"body_format": "avro", "body_subject": "orders", "schema_registry_url": schemas.url, "metadata": True}
    assert (
        source(inbox, **options).schema().simpleString().startswith("struct<id:bigint,state:string,_metadata:struct<")
    )
    (planned,) = all_of(inbox, **options).read()
    # A registry that does not answer is no reason to call a row bad.
    bad: list[BadRow] = []
    task = pickle.dumps(source(inbox, **options))
    schemas.status = 503
    (piece,) = planned
    channel = Channel(piece.channel, None, piece.data)
    with pytest.raises(StorageError, match="did not answer"):
        pickle.loads(task).read(channel, piece.start, piece.end).__next__()
    schemas.status = 200
    found = rows(inbox, planned, bad, **options)
    assert [(row["id"], row["state"], row["_metadata"]["event_id"]) for row in found] == [
        (1, "new", "old"), (2, "sent", "new")
    ]  # fmt: skip
    assert [(one.position["event_id"], one.raw) for one in bad] == [
        (name, bodies[name]) for name in ("{}", "long", "none")
    ]
    assert "the registry does not have" in bad[2].reason
    assert [row["body"] for row in rows(inbox, planned)] == list(bodies.values()), "as they were sent"


def test_bodies_in_protobuf(inbox: Inbox, schemas: SchemaRegistry) -> None:
    id = schemas.register("orders", PROTO, "PROTOBUF")
    options = {"body_format": "protobuf", "body_subject": "orders", "schema_registry_url": schemas.url}
    message = b"\x08\x07\x12\x04sent"
    inbox.push(
        "g1", [request("", str(n))._replace(body=framed(id, one)) for n, one in enumerate((b"\0" + message, b"\2"))]
    )
    bad: list[BadRow] = []
    (planned,) = all_of(inbox, **options).read()
    assert rows(inbox, planned, bad, **options) == [{"id": 7, "state": "sent"}]
    assert len(bad) == 1 and "place of its message" in bad[0].reason


@pytest.mark.parametrize(
    ("kind", "first", "second", "encoded"),
    [("avro", json.dumps(FIRST), json.dumps(SECOND), b"\2"), ("protobuf", PROTO, PROTO_2, b"\0\x08\1")],
    ids=["avro", "protobuf"],
)
def test_a_subject_that_is_deleted_while_the_job_is_down_is_refused_until_it_is_the_same_again(
    inbox: Inbox, schemas: SchemaRegistry, kind: str, first: str, second: str, encoded: bytes
) -> None:
    options: dict[str, Any] = {"body_format": kind, "body_subject": "orders", "schema_registry_url": schemas.url}
    body = framed(schemas.register("orders", first, kind.upper()), encoded)
    inbox.push("g1", [request("", "a")._replace(body=body)])
    known, log = source(inbox, **options).options.identity(), all_of(inbox, **options)
    schemas.delete("orders")
    inbox.push("g1", [request("", "b")._replace(body=body)])
    with pytest.raises(ConfigurationError, match="does not have the latest version of 'orders'") as refusal:
        source(inbox, **options)
    assert refusal.value.operator.startswith("source 's' (http_ingest ")
    schemas.register("orders", second, kind.upper())
    changed = source(inbox, **options, body_version=1).options.identity()
    assert {name for name in known if known[name] != changed[name]} == {"body_version"}
    schemas.delete("orders")
    schemas.register("orders", first, kind.upper())
    planning, bad = planner(inbox, **options), list[BadRow]()
    assert source(inbox, **options).options.identity() == known
    log.plan(planning)
    found = [row["id"] for pieces in log.read() for row in rows(inbox, pieces, bad, **options)]
    assert (found, bad) == ([1, 1], [])


def test_a_schema_is_pinned_and_part_of_the_identity(inbox: Inbox, schemas: SchemaRegistry) -> None:
    schemas.register("orders", json.dumps(FIRST))
    schemas.register("text", '"string"')
    options = {"body_format": "avro", "body_subject": "orders", "schema_registry_url": schemas.url}
    made = source(inbox, **options)
    identity = made.options.identity()
    assert (identity["path"], identity["body_format"], identity["body_subject"]) == ("orders", "avro", "orders")
    assert identity["body_version"].startswith("1 (schema ") and source(inbox).options.identity() == {"path": "orders"}
    schemas.register("orders", json.dumps(SECOND))
    with pytest.raises(ConfigurationError, match="version 2 of the subject 'orders' was registered while"):
        made.resume((), frozenset())
    assert source(inbox, **options, body_version=1).options.identity() == identity
    for change, words in (
        ({"columns": '{"type":"struct","fields":[]}'}, "declares others with schema"),
        ({"body_subject": "text"}, "is no record"),
        ({"body_format": "xml"}, "'avro' or 'protobuf'"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            source(inbox, **{**options, **change})
    with pytest.raises(ConfigurationError, match="body_subject is needed"):
        source(inbox, body_format="avro", schema_registry_url=schemas.url)
