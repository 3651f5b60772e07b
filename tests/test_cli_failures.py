"""The commands about failures: `incidents` and `classify`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from spark_ext.incidents.registry import read_registry
from spark_ext.ledger import Ledger, LedgerWriter, start_incarnation
from spark_ext.ledger.schema import ExecutionStateRow, IncidentRow
from spark_ext.ledger.write_behind import WriteBehind
from spark_ext.views.incidents import moment
from tests.test_cli import T0, spark_ext

TRACE = """Traceback (most recent call last):
  File "/home/me/flights.py", line 12, in half
    return 1 / n
ZeroDivisionError: division by zero
"""


def incident(number: int, query: str, labels: Mapping[str, str], evidence: Any = None) -> IncidentRow:
    return IncidentRow(
        incident_id=f"{number:032x}"[::-1],
        at=T0 + timedelta(minutes=number),
        job="shop",
        incarnation=1,
        operator=f"job 'shop', query '{query}'" if query else "job 'shop'",
        type="failure" if labels else "checkpoint",
        labels=dict(labels),
        what=f"failure {number}\nand more",
        evidence=evidence,
        action="restart 1 in 100 ms",
        severity="WARNING",
        fingerprint="f",
    )


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> str:
    place = str(tmp_path_factory.mktemp("incidents") / "state")
    writer = writer_of(place)
    verdict = {"place": "/home/me/flights.py, line 12, in half"}
    writer.append(
        [
            ExecutionStateRow(operator="load", state="RUNNING", since=T0, incarnation=1, reason=""),
            ExecutionStateRow(operator="idle", state="RUNNING", since=T0, incarnation=1, reason=""),
            incident(1, "load", {"type": "NETWORK", "origin": "user"}),
            incident(2, "load", {"type": "NETWORK", "origin": "library"}),
            incident(
                3, "sum", {"type": "USER_CODE", "origin": "user", "team": "a"}, {"stack": TRACE, "verdict": verdict}
            ),
            incident(4, "", {}),
        ]
    )
    return place


def writer_of(place: str) -> LedgerWriter:
    ledger = Ledger(place)
    return LedgerWriter(ledger, start_incarnation(ledger, "shop", takeover=False, jvm_pid=1, application_id="a"))


def found(*arguments: str) -> list[int]:
    """The numbers of the incidents that a command line lists."""
    done = spark_ext("incidents", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return [int(row["what"].split()[1]) for row in json.loads(done.stdout)]


@pytest.mark.core
def test_l2_labels_are_combined_with_and(state: str) -> None:
    assert found(state) == [1, 2, 3, 4]
    assert found(state, "--label", "type=NETWORK") == [1, 2]
    assert found(state, "--label", "type=NETWORK", "--label", "origin=user") == [1]
    assert found(state, "--label", "origin=user") == [1, 3]
    assert found(state, "--label", "team=a", "--label", "type=NETWORK") == []


def test_queries_times_and_the_newest(state: str) -> None:
    assert found(state, "--query", "load") == [1, 2]
    assert found(state, "--query", "idle") == []
    assert found(state, "--since", (T0 + timedelta(minutes=3)).isoformat()) == [3, 4]
    assert found(state, "--last", "1") == [4]
    assert found(state, "--query", "load", "--last", "1") == [2]


def test_the_table_shows_type_and_origin(state: str) -> None:
    lines = spark_ext("incidents", state).stdout.splitlines()
    columns = [
        "at",
        "id",
        "severity",
        "state",
        "since",
        "count",
        "kind",
        "type",
        "origin",
        "operator",
        "what",
        "action",
    ]
    assert lines[0].split() == columns
    assert lines[3].split()[4:8] == ["1", "failure", "USER_CODE", "user"], "without a change its state is unknown"
    assert "and more" not in "".join(lines)


def test_one_incident_with_its_evidence(state: str) -> None:
    done = spark_ext("incidents", state, "3")
    assert done.returncode == 0
    for words in ("failure 3\nand more", "team: a", "line: /home/me/flights.py, line 12, in half", TRACE):
        assert words in done.stdout
    assert json.loads(spark_ext("incidents", state, "3", "--json").stdout)["evidence"]["stack"] == TRACE


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--label", "team"), "'team' is not a label"),
        (("--label", "tier=1"), "use one of: origin, team, type"),
        (("--query", "lod"), "use one of: idle, load, sum"),
        (("--since", "noon"), "'noon' is not a time"),
        (("no-such-id",), "no incidents have an id that begins with 'no-such-id'"),
        (("0",), "incidents have an id that begins with '0'"),
    ],
)
def test_what_is_not_there_is_refused_with_what_there_is(state: str, arguments: tuple[str, ...], says: str) -> None:
    done = spark_ext("incidents", state, *arguments)
    assert done.returncode == 2
    assert says in done.stderr


def test_a_job_that_is_not_there(tmp_path: Path) -> None:
    assert spark_ext("incidents", tmp_path / "none").returncode == 2


def test_incidents_are_followed(tmp_path: Path) -> None:
    place = str(tmp_path / "state")
    writer = writer_of(place)
    writer.append([incident(1, "load", {"type": "NETWORK", "origin": "user"})])
    command = [sys.executable, "-m", "spark_ext", "incidents", place, "--follow", "--json", "--label", "type=NETWORK"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as following:
        try:
            assert following.stdout is not None
            assert json.loads(following.stdout.readline())["what"].startswith("failure 1")
            writer.append([incident(2, "load", {"type": "SINK", "origin": "user"})])
            writer.append([incident(3, "load", {"type": "NETWORK", "origin": "spark"})])
            assert json.loads(following.stdout.readline())["what"].startswith("failure 3")
        finally:
            following.terminate()


@pytest.fixture(scope="module")
def changing(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, WriteBehind]:
    """A job with an incident that was resolved, one that has happened three times, and one of a user's type."""
    place = str(tmp_path_factory.mktemp("changing") / "state")
    own = read_registry("types: [{name: late, severity: CRITICAL, description: Late., resolved: report}]", "x.yaml")
    behind = WriteBehind(writer_of(place), "shop", registry=own)
    behind.incident("job 'shop', query 'load'", "failure", "failure 1", "restart 1", labels={"type": "NETWORK"})
    behind.committed("load", 7)
    for attempt in range(3):
        behind.incident("job 'shop', query 'sum'", "failure", "failure 2", f"restart {attempt + 1}")
    behind.incident("job 'shop'", "definition", "failure 3", "none")
    behind.incident("job 'shop'", "late", "failure 4", "none", labels={"type": "NETWORK"})
    behind.flush()
    return place, behind


@pytest.mark.parametrize(
    ("arguments", "numbers"),
    [
        ((), [1, 2, 3, 4]),
        (("--state", "open"), [2, 4]),
        (("--state", "RESOLVED"), [1, 3]),
        (("--severity", "error"), [1, 2, 4]),
        (("--severity", "CRITICAL"), [4]),
        (("--type", "failure"), [1, 2]),
        (("--type", "failure", "--type", "late"), [1, 2, 4]),
        (("--type", "failure", "--state", "open"), [2]),
        (("--label", "type=NETWORK", "--state", "open", "--severity", "info"), [4]),
        (("--type", "failure", "--state", "open", "--label", "type=NETWORK"), []),
    ],
)
def test_severity_state_and_type(
    changing: tuple[str, WriteBehind], arguments: tuple[str, ...], numbers: list[int]
) -> None:
    assert found(changing[0], *arguments) == numbers


def test_an_incident_that_happened_again_is_one_line(changing: tuple[str, WriteBehind]) -> None:
    place, _ = changing
    one, two, _, _ = json.loads(spark_ext("incidents", place, "--json").stdout)
    assert (one["state"], one["severity"], one["count"]) == ("RESOLVED", "ERROR", 1)
    assert one["cause"] == "query 'load' has committed epoch 7" and one["state_since"] >= one["at"]
    assert (two["state"], two["count"], two["action"], two["cause"]) == ("OPEN", 3, "restart 3", "")
    assert two["at"] < two["last"], "the first time, and the last one"
    shown = spark_ext("incidents", place, two["incident_id"]).stdout
    for words in ("severity: ERROR", "open since", "3 times, last at", "runbook: docs/operations.md#failure"):
        assert words in shown
    assert ["ERROR", "open"] in [line.split()[3:5] for line in spark_ext("incidents", place).stdout.splitlines()]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--severity", "LOUD"), "'LOUD' is not one of: INFO, WARNING, ERROR, CRITICAL"),
        (("--state", "shut"), "'shut' is not one of: OPEN, RESOLVED"),
        (("--type", "nosuch"), "no incident of this job has the type 'nosuch'"),
    ],
)
def test_a_filter_that_nothing_can_pass_is_refused(
    changing: tuple[str, WriteBehind], arguments: tuple[str, ...], says: str
) -> None:
    done = spark_ext("incidents", changing[0], *arguments)
    assert (done.returncode, says in done.stderr) == (2, True)


def test_changes_are_followed(tmp_path: Path) -> None:
    place = str(tmp_path / "state")
    behind = WriteBehind(writer_of(place), "shop")
    command = [sys.executable, "-m", "spark_ext", "incidents", place, "--follow", "--json", "--type", "failure"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as following:
        try:
            assert following.stdout is not None
            seen: list[tuple[str, str, int]] = []

            def read() -> None:
                one = json.loads(following.stdout.readline())  # type: ignore[union-attr]
                seen.append((one["what"], one["state"], one["count"]))

            behind.incident("job 'shop', query 'q'", "failure", "it failed", "restart 1")
            behind.incident("job 'shop', query 'q'", "close", "of another type", "none")
            behind.flush()
            read()
            behind.committed("q", 1)
            behind.flush()
            read()
            behind.incident("job 'shop', query 'q'", "failure", "it failed", "restart 1")
            behind.flush()
            read()
        finally:
            following.terminate()
    assert seen == [("it failed", "OPEN", 1), ("it failed", "RESOLVED", 1), ("it failed", "OPEN", 2)]


@pytest.mark.parametrize(("text", "ago"), [("30s", 30), ("5m", 300), ("2 h", 7200), ("7d", 604_800)])
def test_a_time_may_be_a_duration(text: str, ago: int) -> None:
    now = datetime(2026, 1, 1, tzinfo=timezone.utc)
    assert now - moment(text, now) == timedelta(seconds=ago)


def test_a_stack_trace_is_explained(tmp_path: Path) -> None:
    file = tmp_path / "trace.txt"
    file.write_text(f"2026-11-25 ERROR it failed\n{TRACE}")
    done = spark_ext("classify", file)
    assert done.returncode == 0
    for line in ("type:      USER_CODE", "decision:  stop", "line:      /home/me/flights.py, line 12, in half"):
        assert line in done.stdout.splitlines()
    given = json.loads(spark_ext("classify", file, "--json").stdout)
    assert given["labels"] == {"type": "USER_CODE", "origin": "user"}
    assert given["decision"] == "stop"


def test_rules_of_ones_own(tmp_path: Path) -> None:
    file, rules = tmp_path / "trace.txt", tmp_path / "rules.yaml"
    file.write_text(TRACE)
    rules.write_text("rules: [{name: mine, type: USER_DATA, exception: builtins.ArithmeticError}]")
    assert json.loads(spark_ext("classify", file, "--rules", rules, "--json").stdout)["rule"] == "mine"
    rules.write_text("rules:\n  - {name: mine, type: BAD, exception: a}")
    done = spark_ext("classify", file, "--rules", rules)
    assert (done.returncode, "rules.yaml, line 2" in done.stderr) == (2, True)


@pytest.mark.parametrize(("text", "says"), [("nothing", "the text has no exception"), (None, "cannot be read")])
def test_what_cannot_be_explained_is_refused(tmp_path: Path, text: str | None, says: str) -> None:
    file = tmp_path / "trace.txt"
    if text is not None:
        file.write_text(text)
    done = spark_ext("classify", file)
    assert (done.returncode, says in done.stderr) == (2, True)
