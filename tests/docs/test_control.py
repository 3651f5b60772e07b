"""The pages of control events and of their reference say what the code does; `test_examples` runs their examples."""

import re

import pytest

from spark_ext.clients.listener import SHARE
from spark_ext.control import emitted, functions, levels, service
from spark_ext.control.event_state import STATUSES
from spark_ext.control.requests import Refusal
from spark_ext.model.configuration import MAX_CONFIGURATION_BYTES
from spark_ext.model.control import MAX_VALUE_BYTES
from spark_ext.model.control_kinds import BUILT_IN, GROUP, Kind
from spark_ext.server.app import create_app
from spark_ext.server.control_routes import LONGEST_WAIT
from spark_ext.server.limits import Limits
from spark_ext.server.served import ServedJob, ServedJobs
from spark_ext.sources.runtime import rates
from spark_ext.sources.runtime.directives import MOST_BROADCASTS
from spark_ext.steering.control import Control
from tests.support import pages

PAGE = pages.read("control") + pages.read("control-reference")


def table(text: str) -> list[list[str]]:
    rows = [line for line in text.partition("|---")[2].split("\n\n")[0].splitlines()[1:] if line.startswith("|")]
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in rows]


KINDS = pages.section("control-reference", "The kinds")
STANDING, ONCE = (table(part) for part in KINDS.split("### Standing")[1].split("### Once"))
ROWS = {row[0].strip("`"): row for row in STANDING + ONCE}


def test_the_tables_have_every_kind() -> None:
    assert {row[0].strip("`") for row in STANDING} == {kind.name for kind in BUILT_IN if kind.standing}
    assert {row[0].strip("`") for row in ONCE} == {kind.name for kind in BUILT_IN if not kind.standing}
    assert all(len(row) == 7 for row in ROWS.values())


@pytest.mark.parametrize("kind", BUILT_IN, ids=lambda kind: kind.name)
def test_a_row_is_that_of_the_code(kind: Kind) -> None:
    _, targets, value, way, who, *_ = ROWS[kind.name]
    assert set(targets.split(", ")) == {str(scope) for scope in kind.scopes}
    members = (
        set()
        if kind.value_type is None
        else {field.alias or name for name, field in kind.value_type.model_fields.items()}
    )
    assert set(re.findall(r"`(\w+)`", value)) == members
    assert kind.lifts == ("without a value:" in value)
    assert way == str(kind.where)
    assert who.startswith("made by the job itself") == (not kind.public)
    assert kind.while_running == (kind.name in ("checkpoint", "savepoint", "stop", "restart", "dump"))


def test_every_kind_for_everybody_has_a_method() -> None:
    names = {"trigger_interval": "interval", "set_config": "set", "config_schema": "schema"}
    assert all(hasattr(Control, names.get(kind.name, kind.name)) for kind in BUILT_IN if kind.public)


def test_every_status_of_an_event_is_explained() -> None:
    assert {row[0].strip("`") for row in table(pages.section("control-reference", "Life of an event"))} == set(STATUSES)


def test_every_refusal_has_its_status() -> None:
    shown = {
        reason: int(row[0])
        for row in table(PAGE.split("| status | `reason` of a refused event | when |")[1])
        for reason in re.findall(r"`(\w+)`", row[1])
    }
    assert shown == {str(refusal): refusal.status for refusal in Refusal}


def test_the_routes_are_those_of_the_server(tmp_path: object) -> None:
    jobs = ServedJobs([ServedJob(str(tmp_path))])
    try:
        paths = create_app(jobs, Limits(), "0").openapi()["paths"]
    finally:
        jobs.close()
    real = {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}
    rows = table(PAGE.split("| route | scope | answer |")[1])
    assert {row[0].strip("`") for row in rows} == real
    for route, scope, _ in rows:
        wanted = "no token" if "/health" in route else "`control`" if "POST" in route else "`read`"
        assert scope == wanted, route


def test_limits_are_those_of_the_code() -> None:
    limits = Limits()
    limited = pages.section("control-reference", "Limits")
    assert f"| {MAX_VALUE_BYTES:,} bytes of JSON |" in limited
    assert f"| {MAX_CONFIGURATION_BYTES:,} bytes of JSON;" in limited
    assert f"| {MOST_BROADCASTS:,}, or 2 MiB of values;" in limited
    assert f"| events that a task emits in an epoch | {emitted.MOST:,} |" in limited
    assert dict(table(PAGE.split("| limit | value |")[1])) == {
        "requests of a token": f"{limits.rate:.0f} per second on average, {limits.burst:,} at once",
        "control events of a token": f"{limits.change_rate:.0f} per second on average, {limits.change_burst} at once",
        "requests of an address without a valid token": (
            f"{limits.refused_rate:.0f} per second on average, {limits.refused_burst} at once"
        ),
        "the answer 429 to what is beyond these": (
            f"after {limits.refusal_seconds:.0f} s, for up to {limits.refusals_held} requests at once"
        ),
        "long polls and streams": f"{limits.waiting}, of which {limits.waiting_each} for each token",
        "events that wait to be committed": f"{service.CAPACITY:,}",
        "body": f"{limits.body_bytes // 1024} KiB, within {limits.body_seconds:.0f} s",
        "headers": f"{limits.header_bytes // 1024} KiB, within {limits.header_seconds:.0f} s",
        "connections": f"{limits.connections}, and at most 1/{SHARE} of the descriptors of the process; a further one "
        "replaces the oldest that has no request with a valid token under way",
        "rows in `control_requests` about requests without a valid token": (
            f"{limits.refused_rate:.0f} per second on average, {limits.refused_burst} at once"
        ),
    }
    assert (rates.LEAST_S, rates.BURST_S, rates.MOST_S) == (0.1, 1.0, 10.0)
    for said in ("enough for a tenth of a second", "for up to ten seconds or two", "it keeps the rows of one second"):
        assert said in PAGE
    assert f"with `wait=SECONDS` ({LONGEST_WAIT} at most)" in PAGE
    assert f'[project.entry-points."{GROUP}"]' in PAGE


def test_the_functions_are_named() -> None:
    for function in (functions.config, functions.value, functions.events, emitted.emit, levels.logger):
        assert f"| `sx.control.{function.__name__}(" in PAGE
