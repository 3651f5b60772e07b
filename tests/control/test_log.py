"""The log of control events, as several processes see it."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from spark_ext import masking
from spark_ext.control import log as log_module
from spark_ext.control import service as service_module
from spark_ext.control.job_events import refusals, takes_back
from spark_ext.control.log import POLLS, ControlLog
from spark_ext.control.requests import Accepted, ControlRefused, Request
from spark_ext.control.service import ControlService
from spark_ext.ledger import Ledger
from spark_ext.ledger.schema import ControlEventRow
from spark_ext.model.event_progress import Step
from tests.control.states import State, now
from tests.support.waiting import until


def test_two_logs_give_one_order_and_know_each_others_keys(tmp_path: Path) -> None:
    state = State(tmp_path)
    logs = [ControlLog(Ledger(state.path)), ControlLog(Ledger(state.path))]
    sequences = []
    for number in range(6):
        (found,) = logs[number % 2].accept([Request("set_config", value={"key": "a", "value": number})])
        assert isinstance(found, Accepted)
        sequences.append(found.event.sequence)
    assert sequences == [1, 2, 3, 4, 5, 6]
    assert [log.configuration().user() for log in logs] == [{"a": 5}] * 2
    keyed = Request("pause", idempotency_key="k")
    (first,), (again,) = logs[0].accept([keyed]), logs[1].accept([keyed])
    assert isinstance(first, Accepted) and isinstance(again, Accepted)
    assert (again.event, again.repeated) == (first.event, True)
    (other,) = logs[1].accept([Request("resume", idempotency_key="k")])
    assert isinstance(other, ControlRefused) and other.refusal == "key_reused"


def test_taking_a_value_back_tells_what_came_of_its_event(tmp_path: Path) -> None:
    """In the same commit, so that no crash comes between; and of the job's own events alone."""
    state = State(tmp_path)
    log = ControlLog(Ledger(state.path))
    first, second = log.accept([Request("set_config", value={"key": "a", "value": number}) for number in (1, 2)])
    assert isinstance(first, Accepted) and isinstance(second, Accepted)
    masking.remember("hunter2")
    why = Step("rejected", reason="2 is too much, password=hunter2")
    takes_back(log, second.event.event_id, why, "job", "set_config", {"key": "a", "value": 1})
    forged = Request("pause", idempotency_key=f"failed:{first.event.event_id}", origin="rest 127.0.0.1", reason="no")
    assert isinstance(log.accept([forged])[0], Accepted)
    found = refusals(Ledger(state.path).open_control_events())
    assert list(found) == [second.event.event_id]
    step = found[second.event.event_id]
    assert step.status == "rejected" and step.reason.startswith("2 is too much") and "hunter2" not in step.reason
    assert ControlLog(Ledger(state.path)).configuration().user() == {"a": 1}


def test_an_event_that_expired_before_being_obeyed_is_void(tmp_path: Path) -> None:
    """A log that is opened later has to know: a query that is built from the configuration would be built from it."""
    state = State(tmp_path)
    log = ControlLog(Ledger(state.path))
    soon = now() + timedelta(milliseconds=300)
    keys = ("missed", "obeyed", "lasting")
    asked = [Request("set_config", value={"key": key, "value": 1}, expires_at=soon) for key in keys[:2]]
    missed, obeyed, lasting = log.accept([*asked, Request("set_config", value={"key": keys[2], "value": 1})])
    assert isinstance(missed, Accepted) and isinstance(obeyed, Accepted) and isinstance(lasting, Accepted)
    state.step(obeyed.event, "applied", "q", 3)
    until(lambda: now() > soon, "their time")
    assert ControlLog(Ledger(state.path)).configuration().user() == {"obeyed": 1, "lasting": 1}


def test_the_key_of_an_event_that_has_expired_still_names_it(tmp_path: Path) -> None:
    """For logs that are opened later, too: the request may be repeated as late as that."""
    log = ControlLog(Ledger(State(tmp_path).path))
    soon = now() + timedelta(seconds=1)
    request = Request("set_config", value={"key": "a", "value": 1}, expires_at=soon, idempotency_key="k")
    (first,) = log.accept([request])
    until(lambda: now() > soon, "its time")
    again, other = ControlLog(Ledger(log._ledger.uri)).accept([request, Request("pause", idempotency_key="k")])
    assert isinstance(first, Accepted) and isinstance(again, Accepted)
    assert (again.event.event_id, again.repeated) == (first.event.event_id, True)
    assert isinstance(other, ControlRefused) and other.refusal == "key_reused"


def test_a_configuration_too_large_in_present_values_is_refused(tmp_path: Path) -> None:
    log = ControlLog(Ledger(State(tmp_path).path))
    large = "x" * 60_000
    found = log.accept([Request("set_config", value={"key": "same", "value": large}) for _ in range(40)])
    assert all(isinstance(one, Accepted) for one in found), "the last of them stands alone"
    found = log.accept([Request("set_config", value={"key": f"k{number}", "value": large}) for number in range(20)])
    assert [number for number, one in enumerate(found) if isinstance(one, ControlRefused)] == [16, 17, 18, 19]
    (other,) = ControlLog(Ledger(log._ledger.uri)).accept([Request("set_config", value={"key": "z", "value": large})])
    assert isinstance(other, ControlRefused) and "larger than 1048576 bytes" in other.what
    (room,) = log.accept([Request("set_config", value={"key": "same", "unset": True})])
    assert isinstance(room, Accepted)
    (fits,) = log.accept([Request("set_config", value={"key": "z", "value": large})])
    assert isinstance(fits, Accepted)


def test_a_value_that_a_query_cannot_read_is_refused(tmp_path: Path) -> None:
    """By any sender, and while no driver runs: the ledger says what the queries read."""
    reads = {"q": (("at", "timestamp"), ("k", "double")), "r": (("k", "bigint"), ("tags", "array<string>"))}
    state = State(tmp_path, reads=reads)
    log = ControlLog(Ledger(state.path))

    def refused(key: str, value: Any, target: str = "job") -> str:
        (found,) = log.accept([Request("set_config", target, {"key": key, "value": value})])
        return found.what if isinstance(found, ControlRefused) else ""

    assert refused("k", "high").startswith("the value of 'k' is not of the type double, as which query 'q' reads it: ")
    assert "of the type bigint, as which query 'r' reads it" in refused("k", 0.5), "both have to accept it"
    assert "query 'r'" in refused("tags", "a") and "query 'q'" in refused("at", "yesterday")
    assert not any(refused(*one) for one in (("k", 0.5, "query:q"), ("k", 3), ("k", "3"), ("tags", ["a"]), ("k", None)))
    assert not refused("other", "high") and log.configuration().user("q") == {"k": 0.5, "tags": ["a"], "other": "high"}
    log.accept([Request("config_schema", value={"key": "k", "schema": {"type": "string"}})])
    assert not refused("k", "high"), "what is declared wins"
    assert "does not conform to its schema" in refused("k", 3)
    log.accept([Request("set_config", value={"key": "at", "unset": True})])
    state.define("q")
    assert not refused("at", "yesterday"), "the query reads it no more"


def test_a_look_ends_while_others_add_events_all_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start ends, too, if reading the table takes longer than others take to add to it."""
    path = State(tmp_path).path
    other, slow = ControlLog(Ledger(path)), ControlLog(Ledger(path))
    other.accept([Request("set_config", value={"key": "first", "value": 1})])
    reads, read = [], slow._table.rows

    def rows(where: Any) -> Any:
        reads.append(where)
        other.accept([Request("set_config", value={"key": f"key{len(reads)}", "value": 1})])
        slow._table.refresh()
        return read(where)

    monkeypatch.setattr(slow._table, "rows", rows)
    found = slow.configuration()
    assert len(reads) == POLLS and {"first", "key1"} <= found.user().keys()
    assert [where[0][2] for where in reads] == sorted({where[0][2] for where in reads}), "each reads what is new"
    monkeypatch.setattr(slow._table, "rows", read)
    (last,) = slow.accept([Request("pause")])
    assert isinstance(last, Accepted) and last.event.sequence == POLLS + 2
    assert slow.configuration().user() == other.configuration().user()


def test_acceptors_keep_the_table_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only a driver: otherwise each commit is a further file for every reader, and for the next start."""
    monkeypatch.setattr(service_module, "COMPACT_EVERY", 4)
    monkeypatch.setattr(log_module, "SMALL_FILES", 4)
    path = State(tmp_path).path
    service = ControlService(Ledger(path))
    for number in range(9):
        service.submit(Request("set_config", value={"key": "a", "value": number}))
    service.close()
    table = Ledger(path).table(ControlEventRow)
    assert len(table.rows()) == 9
    with table.opened() as handle:
        assert handle is not None and len(handle.file_uris()) < 4
    assert ControlLog(Ledger(path)).configuration().user() == {"a": 8}
