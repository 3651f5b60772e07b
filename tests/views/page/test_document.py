"""The document of a job: the same facts as its status and its timeline, in JSON."""

import io
import json
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from typing import Any

import pytest
from rich.console import Console

from spark_ext.ledger import Ledger
from spark_ext.ledger.columns import to_arrow
from spark_ext.ledger.schema import EpochRow, JobRow
from spark_ext.masking import remember
from spark_ext.views.page.document import page
from spark_ext.views.page.epochs import Epochs
from spark_ext.views.page.facts import Facts, FactsReader
from spark_ext.views.page.graph import edges, exchanges, newest_definitions, operators
from spark_ext.views.page.history import whole
from spark_ext.views.page.incidents import detail, lines
from spark_ext.views.page.top import top_json, top_rows
from spark_ext.views.snapshot import LatencySnapshot
from spark_ext.views.status import read_status
from spark_ext.views.terminal import top_view
from tests.ledger import rows
from tests.support.page_states import HOSTILE, SHOP, query, shop

NOW = datetime.now(timezone.utc)


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> str:
    return shop(tmp_path_factory.mktemp("page") / "state")


@pytest.fixture(scope="module")
def facts(state: str) -> Facts:
    return FactsReader(Ledger(state)).read()


@pytest.fixture(scope="module")
def document(facts: Facts) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(page(facts, datetime.now(timezone.utc))))
    return found


def started(event: str = "started", **changed: Any) -> dict[str, Any]:
    row = JobRow(
        job="j", job_id="1", incarnation=1, lineage=1, query="", event=event, at=NOW, host="h", driver_pid=1,
        driver_started=1.0, jvm_pid=None, application_id="", reason="",
    )  # fmt: skip
    return {**vars(row), **changed}


def state_row(name: str, operator: str = "", **changed: Any) -> dict[str, Any]:
    return {**vars(rows.state(name, operator, NOW)), **changed}


def of(*states: dict[str, Any], **facts: Any) -> Facts:
    return Facts(directory="d", **{"jobs": (started(),), "states": states, **facts})


def test_it_agrees_with_the_status(state: str, document: dict[str, Any]) -> None:
    status = read_status(state)
    assert document["job"]["state"] == status.state and document["job"]["name"] == "shop"
    for found, known in zip(document["queries"], status.queries, strict=True):
        assert (found["uid"], found["state"], found["reason"]) == (known.uid, known.state, known.reason)
        assert (found["epochs"], found["rows"]) == (known.epochs, known.rows)
        assert (found["last_epoch"], found["last_ms"]) == (known.last_epoch, known.last_epoch_ms)
    assert [span["outcome"] for span in document["timeline"]["spans"]] == ["lost", ""]


def test_a_query_has_the_rows_that_fail_its_rules(facts: Facts) -> None:
    """By rule, over its epochs; those of before a reset do not count."""
    given = [("price", 1, {"positive": 2}), ("price", 1, {"positive": 1, "known": 4}), ("price", 0, {"known": 9})]
    bad = tuple(
        vars(replace(rows.bad_rows(epoch), query=query, rows=0, rules=rules, lineage=lineage))
        for epoch, (query, lineage, rules) in enumerate(given)
    )
    reset = started("reset", query="price", lineage=1)
    found = page(replace(facts, bad_rows=(*bad, {**bad[0], "rules": None}), jobs=(*facts.jobs, reset)), NOW)
    failures = {query["uid"]: query["rule_failures"] for query in found["queries"]}
    assert failures.pop("price") == {"positive": 3, "known": 4} and not any(failures.values())


def test_a_query_has_the_latencies_from_its_sources(facts: Facts) -> None:
    one = LatencySnapshot(source="in", ms=70, at=NOW, hops=(("p", 30), ("price", 70)), way=("x-in",), markers=2)
    found = page(replace(facts, latencies={"price": (one,)}), NOW)["queries"]
    shown = {query["uid"]: query["latencies"] for query in found}
    assert shown.pop("price") == [{"source": "in", "way": ["x-in"], "ms": 70, "p99_ms": None}]
    assert shown and not any(shown.values())


def test_each_second_has_one_state_and_downtime_has_its_incident(document: dict[str, Any]) -> None:
    found = document["timeline"]
    assert sum(found["states_s"].values()) == pytest.approx(found["wall_s"], abs=0.01)
    job = found["intervals"][""]
    assert all(before[2] == after[1] for before, after in pairwise(job)) and job[-1][2] is None
    down = next(interval for interval in job if interval[0] == "DOWN")
    assert down[4] == "5be77d10f00d" and "lost" in down[3]
    assert {"DOWN", "CREATED"} <= found["incidents_s"]["5be77d10f00d"].keys()
    assert [interval[4] for interval in found["intervals"]["price"] if interval[0] == "RESTARTING"] == ["2c1f02aa1"]


def test_graph_channels_and_checkpoints_are_those_recorded(document: dict[str, Any]) -> None:
    edges_shown = {(one["from"], one["exchange"], one["to"]) for one in document["graph"]["edges"]}
    assert edges_shown == {
        ("load-orders", "orders", "price"), ("load-orders", "orders", "archive"), ("load-rates", "rates", "price"),
        ("load-rates", "rates", "alerts"), ("price", "priced", "daily"), ("price", "priced", "alerts"),
    }  # fmt: skip
    assert document["graph"]["operators"]["audit"]["sources"][0]["format"] == "files"
    assert set(document["graph"]["operators"]) == set(SHOP)
    (one,) = [one for one in document["channels"] if one["source"] == "load-orders-orders"]
    assert (one["done"], one["running"], one["finished"]) == (17, 13, False)
    assert ["part-3", 2, 103] in one["channels"] and ["part-29", 0, None] in one["channels"]
    found = {one["id"]: one for one in document["checkpoints"]}
    assert found[23]["status"] == "FAILED" and found[17]["kind"] == "savepoint"
    assert found[22]["ms"] == pytest.approx(420, abs=1) and found[22]["rows"] == 154


def test_it_is_small_for_many_epochs(facts: Facts) -> None:
    assert len(facts.epochs) > 2_000
    found = page(facts, datetime.now(timezone.utc), points=0)
    assert all(len(one["at"]) <= 16 for one in found["series"]["queries"].values())


def test_a_driver_that_was_lost() -> None:
    beat = (NOW + timedelta(seconds=30)).replace(microsecond=0)
    facts = of(state_row("RUNNING"), state_row("RUNNING", "q"), alive=False, beats={1: beat})
    job = page(facts, NOW + timedelta(hours=1))["job"]
    assert job["lost"] and job["state"] == "DOWN" and job["recorded"] == "RUNNING"
    assert job["since"] == round(beat.timestamp() * 1000) and job["rate"] is None


@pytest.mark.parametrize(("alive", "silent"), [(None, True), (True, True), (False, False)])
def test_a_driver_that_is_silent(alive: bool | None, silent: bool) -> None:
    beat = (NOW + timedelta(seconds=30)).replace(microsecond=0)
    facts = of(state_row("RUNNING"), alive=alive, beats={1: beat})
    job = page(facts, beat + timedelta(seconds=61))["job"]
    assert (job["silent"], job["heartbeat"]) == (silent, round(beat.timestamp() * 1000))
    assert job["state"] == ("RUNNING" if silent else "DOWN")
    assert not page(facts, beat + timedelta(seconds=59))["job"]["silent"]
    ended = started("ended", reason="CANCELED")
    over = page(replace(facts, jobs=(started(), ended)), beat + timedelta(hours=1))["job"]
    assert (over["silent"], over["heartbeat"]) == (False, None)


def test_top_says_since_when_a_driver_is_silent() -> None:
    beat = (NOW + timedelta(seconds=30)).replace(microsecond=0)
    facts = of(state_row("RUNNING"), beats={1: beat})
    shown = io.StringIO()
    Console(file=shown, width=200).print(top_view(page(facts, beat + timedelta(hours=1))))
    assert f"no heartbeat since {beat:%Y-%m-%d %H:%M:%S} UTC" in shown.getvalue()


def test_a_job_of_unknown_states_and_one_without_any() -> None:
    found = page(of(state_row("PONDERING"), state_row("PONDERING", "q", incident="i1"), alive=True), NOW)
    assert found["job"]["state"] == "PONDERING" and found["queries"][0]["incident"] == "i1"
    assert found["job"]["states"] == {"PONDERING": 1}
    found = page(of(alive=None), NOW)
    assert found["job"]["state"] == "CREATED" and found["queries"] == [] and found["series"]["job"]["at"] == []


def test_rows_before_a_reset_do_not_count(facts: Facts) -> None:
    reset = {**facts.jobs[0], "event": "reset", "query": "price", "lineage": 2, "at": datetime.now(timezone.utc)}
    changed = Facts(**{**vars(facts), "jobs": (*facts.jobs, reset)})
    found = {one["uid"]: one for one in page(changed, datetime.now(timezone.utc))["queries"]}
    assert (found["price"]["state"], found["price"]["epochs"]) == ("CREATED", 0) and found["daily"]["epochs"] > 0


def test_queries_that_were_removed_or_renamed_are_not_shown() -> None:
    made = [
        {"query": uid, "incarnation": number, "at": NOW, "definition": query(("in",), "out", uid)}
        for uid, number in (("old", 1), ("new", 2), ("back", 1), ("back", 3))
    ]
    renamed = started("renamed", query="new", renamed_from="old", incarnation=2)
    jobs = [renamed, started("removed", query="back", incarnation=2)]
    assert set(newest_definitions(made, jobs)) == {"new", "back"}


def test_an_exchange_is_sealed_until_a_restore_cuts_it() -> None:
    made_of = operators({"a": query(("in",), "@x", "a"), "b": query(("@x", "@x", "@nobody"), "out", "b")})
    assert edges(made_of) == [{"from": "a", "to": "b", "exchange": "x"}]

    def sealed(*events: tuple[str, int]) -> bool:
        given = [vars(replace(rows.exchange(1, event), query="a", lineage=lineage)) for event, lineage in events]
        found = {one["name"]: one for one in exchanges(made_of, given)}
        assert found["x"]["readers"] == ["b"] and found["nobody"]["writers"] == []
        return bool(found["x"]["sealed"])

    assert not sealed() and sealed(("sealed", 1)) and not sealed(("sealed", 1), ("cut", 2))
    assert sealed(("sealed", 1), ("cut", 2), ("sealed", 2))


def test_rows_that_are_in_no_output_are_counted_for_the_job_and_its_queries(facts: Facts) -> None:
    bad = tuple(vars(replace(rows.bad_rows(number), query="price")) for number in (1, 2))
    late = [replace(rows.epoch(number, "price"), late_rows=number) for number in (1, 2)]
    epochs = Epochs.of(to_arrow(EpochRow, [*late, rows.epoch(1, "daily")]))
    found = page(Facts(**{**vars(facts), "bad_rows": bad, "epochs": epochs}), NOW)
    assert (found["job"]["bad_rows"], found["job"]["late_rows"]) == (6, 3)
    again = ({**bad[1], "rules": {"r": 2}}, {**bad[1], "rows": 0, "path": "/other", "rules": {"r": 2}})
    twice = page(Facts(**{**vars(facts), "bad_rows": (*bad, *again), "epochs": epochs}), NOW)
    assert twice["job"]["bad_rows"] == 6, "a row of the ledger may come twice"
    assert [query["rule_failures"] for query in twice["queries"] if query["uid"] == "price"] == [{"r": 2}]
    by_query = {query["uid"]: (query["bad_rows"], query["late_rows"]) for query in found["queries"]}
    assert by_query["price"] == (6, 3) and by_query["daily"] == (0, 0)


def test_secrets_are_masked(facts: Facts) -> None:
    remember("hunter2hunter2")
    row = {**facts.incidents[0], "incident_id": "new", "what": "password hunter2hunter2 refused"}
    found = json.dumps(page(Facts(**{**vars(facts), "incidents": (*facts.incidents, row)}), NOW))
    assert "refused" in found and "hunter2" not in found


def test_incidents_of_any_age() -> None:
    given = replace(rows.incident(1, NOW), incident_id="i", what=f"{HOSTILE}\nmore", operator="query 'q'")
    row: dict[str, Any] = {**vars(given), "evidence": {"stack": "s", "at": NOW}}
    (old,) = lines(whole([row], []))
    assert (old["severity"], old["parent"], old["status"], old["query"]) == ("WARNING", "", "", "q")
    change = {"incident_id": "i", "at": NOW, "old": "", "new": "OPEN", "cause": "", "incarnation": 1, "count": 1}
    end = {**change, "at": NOW + timedelta(seconds=1), "old": "OPEN", "new": "RESOLVED", "cause": "epoch 3", "count": 2}
    changes = [end, {**change, "incident_id": "other"}, change]
    again = {**row, "at": NOW + timedelta(seconds=1)}
    (new,) = lines(whole([{**one, "severity": "CRITICAL", "parent": "p"} for one in (again, row)], changes))
    assert (new["severity"], new["parent"], new["status"], new["what"]) == ("CRITICAL", "p", "RESOLVED", HOSTILE)
    assert (new["at"], new["count"]) == (round(NOW.timestamp() * 1000), 2)
    found = detail(whole([row], changes)[0], changes)
    assert found["stack"] == "s" and found["evidence"] == {"at": NOW.isoformat()} and len(found["changes"]) == 2


def test_top_has_what_needs_attention_first(document: dict[str, Any]) -> None:
    first, *others = top_rows(document)
    assert first["query"] == "price" and first["incident"] == "4c1f02aa3" and first["state"] == "FAILED"
    assert [row["query"] for row in others] == sorted(row["query"] for row in others)
    assert top_json(document)["state"] == "FAILING"
    assert len(list(top_view(document, height=8).renderables)) == 3  # head, table, and how many more there are


def test_each_query_says_how_far_it_is_behind(facts: Facts, document: dict[str, Any]) -> None:
    queries = {one["uid"]: one for one in document["queries"]}
    loads, alerts, price = queries["load-orders"], queries["alerts"], queries["price"]
    assert loads["lag"]["rows"] == 41_200 and loads["lag"]["sources"][0][:2] == ["load-orders-orders", 41_200]
    assert alerts["lag"]["rows"] == 1_203 and alerts["lag"]["at"] == alerts["lag"]["sources"][0][2], "the oldest figure"
    assert alerts["watermark"] < alerts["newest_row"] < document["at"] and price["watermark"] is None
    assert [name for name, _, _ in price["lag"]["sources"]] == [HOSTILE, "price-orders"], "not all of them are known"
    assert price["lag"]["rows"] is not None, "but the newest epoch has it"
    assert queries["daily"]["lag"] == {"rows": None, "at": None, "sources": []}
    assert document["job"]["lag"] == 41_200 + 1_203
    lag = document["series"]["queries"]["load-orders"]["lag"]
    assert len(lag) == len(document["series"]["queries"]["load-orders"]["at"]) and max(lag) > 40_000
    assert document["series"]["queries"]["daily"]["lag"] == document["series"]["job"]["lag"] == []
    top = {row["query"]: row for row in top_rows(document)}
    assert top["alerts"]["lag_rows"] == 1_203 and top["alerts"]["lag_age_s"] >= 40
    assert top["price"]["lag_age_s"] is None, "it has ended"
    without = page(replace(facts, said={}), datetime.now(timezone.utc))
    assert next(one for one in without["queries"] if one["uid"] == "alerts")["lag"]["rows"] is None
    price_lag = {"lag": {"a": [1], "b": ["x", 2]}}
    silly: Any = {"load-orders": [], "alerts": {"lag": [1], "watermark": "x"}, "price": price_lag}
    assert page(replace(facts, said=silly), datetime.now(timezone.utc))["version"] == document["version"]
