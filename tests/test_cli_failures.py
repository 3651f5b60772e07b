"""The commands about failures: `incidents` and `classify`."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from spark_ext.incidents.registry import read_registry
from spark_ext.ledger import Ledger, LedgerWriter, start_incarnation
from spark_ext.ledger.schema import IncidentRow
from spark_ext.ledger.write_behind import WriteBehind
from spark_ext.views.incidents import moment
from tests.ledger import rows
from tests.test_cli import T0, printed, refused, spark_ext

TRACE = """Traceback (most recent call last):
  File "/home/me/flights.py", line 12, in half
    return 1 / n
ZeroDivisionError: division by zero
"""
JAVA = """org.apache.spark.SparkException: Job aborted due to stage failure
\tat org.apache.spark.scheduler.DAGScheduler.$anonfun$abortStage$1(DAGScheduler.scala:2895)
\tat java.base/java.lang.Thread.run(Thread.java:840)
Caused by: org.apache.spark.api.python.PythonException: """


def incident(number: int, query: str, labels: dict[str, str], evidence: Any = None) -> IncidentRow:
    return replace(
        rows.incident(number, T0 + timedelta(minutes=number)), incident_id=f"{number:032x}"[::-1], evidence=evidence,
        operator=f"job 'shop', query '{query}'" if query else "job 'shop'", labels=labels,
        type="failure" if labels else "checkpoint", what=f"failure {number}\nand more",
    )  # fmt: skip


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> str:
    place = str(tmp_path_factory.mktemp("incidents") / "state")
    writer = writer_of(place)
    labels = {"type": "USER_CODE", "origin": "user", "team": "a"}
    verdict = {"place": "/home/me/flights.py, line 12, in half"}
    writer.append(
        [
            rows.state("RUNNING", "load", T0), rows.state("RUNNING", "idle", T0),
            incident(1, "load", {"type": "NETWORK", "origin": "user"}),
            incident(2, "load", {"type": "NETWORK", "origin": "library"}),
            incident(3, "sum", labels, {"stack": JAVA + TRACE, "verdict": verdict}), incident(4, "", {}),
        ]
    )  # fmt: skip
    return place


def writer_of(place: str) -> LedgerWriter:
    ledger = Ledger(place)
    return LedgerWriter(ledger, start_incarnation(ledger, "shop", takeover=False, jvm_pid=1, application_id="a"))


def found(*arguments: str) -> list[int]:
    return [int(row["what"].split()[1]) for row in printed("incidents", *arguments)]


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
    columns = "at id severity state since count kind type origin operator what action"
    assert lines[0].split() == columns.split()
    assert lines[3].split()[4:8] == ["1", "failure", "USER_CODE", "user"], "without a change its state is unknown"
    assert "and more" not in "".join(lines)


def test_one_incident_with_its_evidence(state: str) -> None:
    done = spark_ext("incidents", state, "3")
    assert done.returncode == 0
    for words in ("failure 3\nand more", "team: a", "line: /home/me/flights.py, line 12, in half", TRACE):
        assert words in done.stdout
    assert "DAGScheduler" not in done.stdout and "(2 frames of Java left out; --stack shows them)" in done.stdout
    assert "(DAGScheduler.scala:2895)" in spark_ext("incidents", state, "3", "--stack").stdout
    assert printed("incidents", state, "3")["evidence"]["stack"] == JAVA + TRACE


def test_the_first_and_the_last_text_of_an_incident_stay_with_whether_it_is_over(tmp_path: Path) -> None:
    writer = writer_of(place := str(tmp_path / "state"))
    behind = WriteBehind(writer, "shop")
    who = "job 'shop', query 'load'"
    for epoch, rows_ in ((2, 200), (9, 3)):
        behind.incident(who, "checkpoint", f"the source has {rows_} bad rows in epoch {epoch}", "none")
    behind.flush()
    assert len(Ledger(place).table(IncidentRow).rows()) == 1
    first, last = "the source has 200 bad rows in epoch 2", "the source has 3 bad rows in epoch 9"
    (one,) = printed("incidents", place)
    assert (one["first_what"], one["what"], one["count"], one["state"]) == (first, last, 2, "OPEN")
    status = printed("status", place)["incidents"]
    assert [(it["first_what"], it["what"], it["state"]) for it in status] == [(first, last, "OPEN")]
    described = spark_ext("incidents", place, one["incident_id"]).stdout
    assert first in described and f"2 times, last at {behind_time(one)} UTC: {last}" in described
    behind.committed("load", 10)
    behind.flush()
    for command in ("incidents", "status"):
        text = spark_ext(command, place).stdout
        assert f"{first}; last: {last}" in " ".join(text.split()) and "resolved" in text


def behind_time(one: dict[str, Any]) -> str:
    return f"{datetime.fromisoformat(one['last']):%Y-%m-%d %H:%M:%S}"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--label", "team"), "'team' is not a label"), (("--label", "tier=1"), "use one of: origin, team, type"),
        (("--query", "lod"), "use one of: idle, load, sum"), (("--since", "noon"), "'noon' is not a time"),
        (("no-such-id",), "no incidents have an id that begins with 'no-such-id'"),
        (("0",), "incidents have an id that begins with '0'"), (("--state", "shut"), "'shut' is not one of: OPEN, RES"),
        (("--severity", "LOUD"), "'LOUD' is not one of: INFO, WARNING, ERROR, CRITICAL"),
        (("--type", "nosuch"), "no incident of this job has the type 'nosuch'"),
    ],
)  # fmt: skip
def test_what_is_not_there_is_refused_with_what_there_is(state: str, arguments: tuple[str, ...], says: str) -> None:
    assert says in refused("incidents", state, *arguments)


@contextmanager
def followed(place: str, *arguments: str) -> Iterator[Callable[[], dict[str, Any]]]:
    """`incidents --follow` as a process: a function that returns the next one it prints."""
    command = [sys.executable, "-m", "spark_ext", "incidents", place, "--follow", "--json", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as following:
        assert following.stdout is not None
        lines = following.stdout
        try:
            yield lambda: json.loads(lines.readline())
        finally:
            following.terminate()


def test_incidents_are_followed(tmp_path: Path) -> None:
    place = str(tmp_path / "state")
    writer = writer_of(place)
    writer.append([incident(1, "load", {"type": "NETWORK", "origin": "user"})])
    with followed(place, "--label", "type=NETWORK") as read:
        assert read()["what"].startswith("failure 1")
        writer.append([incident(2, "load", {"type": "SINK", "origin": "user"})])
        writer.append([incident(3, "load", {"type": "NETWORK", "origin": "spark"})])
        assert read()["what"].startswith("failure 3")


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
        ((), [1, 2, 3, 4]), (("--state", "open"), [2, 4]), (("--state", "RESOLVED"), [1, 3]),
        (("--severity", "error"), [1, 2, 4]), (("--severity", "CRITICAL"), [4]), (("--type", "failure"), [1, 2]),
        (("--type", "failure", "--type", "late"), [1, 2, 4]), (("--type", "failure", "--state", "open"), [2]),
        (("--label", "type=NETWORK", "--state", "open", "--severity", "info"), [4]),
        (("--type", "failure", "--state", "open", "--label", "type=NETWORK"), []),
    ],
)  # fmt: skip
def test_severity_and_state(changing: tuple[str, WriteBehind], arguments: tuple[str, ...], numbers: list[int]) -> None:
    assert found(changing[0], *arguments) == numbers


def test_an_incident_that_happened_again_is_one_line(changing: tuple[str, WriteBehind]) -> None:
    place, _ = changing
    one, two, _, _ = printed("incidents", place)
    assert (one["state"], one["severity"], one["count"]) == ("RESOLVED", "ERROR", 1)
    assert one["cause"] == "query 'load' has committed epoch 7" and one["state_since"] >= one["at"]
    assert (two["state"], two["count"], two["action"], two["cause"]) == ("OPEN", 3, "restart 3", "")
    assert two["at"] < two["last"], "the first time, and the last one"
    shown = spark_ext("incidents", place, two["incident_id"]).stdout
    for words in ("severity: ERROR", "open since", "3 times, last at", "runbook: docs/runbooks.md#failure"):
        assert words in shown
    assert ["ERROR", "open"] in [line.split()[3:5] for line in spark_ext("incidents", place).stdout.splitlines()]


def test_changes_are_followed(tmp_path: Path) -> None:
    place = str(tmp_path / "state")
    behind = WriteBehind(writer_of(place), "shop")
    fails = partial(behind.incident, "job 'shop', query 'q'", "failure", "it failed", "restart 1")
    seen = []
    with followed(place, "--type", "failure") as read:
        for happens in (fails, partial(behind.committed, "q", 1), fails):
            happens()
            behind.incident("job 'shop', query 'q'", "close", "of another type", "none")
            behind.flush()
            one = read()
            seen.append((one["what"], one["state"], one["count"]))
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
    given = printed("classify", file)
    assert (given["labels"], given["decision"]) == ({"type": "USER_CODE", "origin": "user"}, "stop")


def test_rules_of_ones_own(tmp_path: Path) -> None:
    file, rules = tmp_path / "trace.txt", tmp_path / "rules.yaml"
    file.write_text(TRACE)
    rules.write_text("rules: [{name: mine, type: USER_DATA, exception: builtins.ArithmeticError}]")
    assert printed("classify", file, "--rules", rules)["rule"] == "mine"
    rules.write_text("rules:\n  - {name: mine, type: BAD, exception: a}")
    assert "rules.yaml, line 2" in refused("classify", file, "--rules", rules)


@pytest.mark.parametrize(("text", "says"), [("nothing", "the text has no exception"), (None, "cannot be read")])
def test_what_cannot_be_explained_is_refused(tmp_path: Path, text: str | None, says: str) -> None:
    file = tmp_path / "trace.txt"
    if text is not None:
        file.write_text(text)
    assert says in refused("classify", file)
