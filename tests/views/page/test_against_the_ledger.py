"""Each figure of the page, of other faces too, against the ledger's tables read with pandas, without code of ours."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from deltalake import DeltaTable

from spark_ext.ledger import Ledger
from spark_ext.ledger.incarnation import forget
from spark_ext.ledger.schema import BadRowsRow, EpochRow, IncidentChangeRow
from spark_ext.views.page.document import page
from spark_ext.views.page.facts import FactsReader
from spark_ext.views.status import read_status
from tests.support.page_states import shop
from tests.test_cli import spark_ext

UP = {"RUNNING": 1.0, "RESTARTING": 0.0, "FAILING": 0.0, "LOST": 0.0, "CREATED": None}
LIVES = ("running", "failed")


@dataclass
class Shown:
    """A job of two starts, the first of which was lost, and its page at one moment."""

    state: str
    now: datetime
    page: dict[str, Any]
    alive: bool

    def table(self, name: str) -> Any:
        return DeltaTable(f"{self.state}/ledger/{name}").to_pandas()

    def epochs(self) -> Any:
        """A writer that was killed may have left a row twice."""
        found = self.table("epochs").drop_duplicates(["query", "lineage", "epoch"])
        found["end"] = found.committed_at.astype("datetime64[us, UTC]").astype("int64") // 1000
        found["begin"] = found.end - found.duration_ms
        return found

    def query(self, uid: str) -> dict[str, Any]:
        return next(query for query in self.page["queries"] if query["uid"] == uid)


@pytest.fixture(scope="module", params=LIVES)
def shown(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    alive = request.param == "running"
    folder = tmp_path_factory.mktemp(request.param) / "state"
    state = shop(folder, hours=1, alive=alive)
    ledger = Ledger(state)
    rows = ledger.table(EpochRow).rows()
    ledger.table(EpochRow).append(rows[:7])  # as a writer leaves them that was killed
    known = {"query": "price", "query_id": "price", "lineage": 1, "incarnation": 2, "offsets": None}
    ended = max(row.committed_at for row in rows)
    figures = {"input_rows": 20, "duration_ms": 100, "late_rows": 7, "state_rows": 5}
    last = EpochRow(**known, epoch=9_000, committed_at=ended, **figures)  # type: ignore[arg-type]
    ledger.table(EpochRow).append([last])
    bad = {"query": "price", "path": "bad", "lineage": 1, "incarnation": 2, "at": ended, "role": "sink"}
    ledger.table(BadRowsRow).append(
        [
            BadRowsRow(**bad, source="price-out", epoch=epoch, rows=2, rules=rules)  # type: ignore[arg-type]
            for epoch, rules in ((2_001, {"positive": 2}), (2_002, {"positive": 1, "known": 3}))
        ]
    )
    first = pd.DataFrame(DeltaTable(f"{state}/ledger/incidents").to_pandas()).sort_values("at").iloc[0]
    change = {"incident_id": first.incident_id, "incarnation": 1, "old": "OPEN", "cause": "ran"}
    ledger.table(IncidentChangeRow).append(
        [IncidentChangeRow(**change, at=ended, new="RESOLVED", count=3, what="again")]
    )
    now = datetime.now(timezone.utc)
    yield Shown(state, now, page(FactsReader(ledger).read(), now), alive)
    forget(state, 2)


def test_counts_are_those_of_the_tables(shown: Shown) -> None:
    epochs, bad = shown.epochs(), shown.table("bad_rows")
    status = read_status(shown.state)
    for uid, own in epochs.groupby("query"):
        found, newest = shown.query(str(uid)), own.sort_values("epoch").iloc[-1]
        counted = {"epochs": len(own), "rows": own.input_rows.sum(), "late_rows": own.late_rows.sum()}
        counted |= {"last_epoch": newest.epoch, "last_ms": newest.duration_ms, "committed_at": newest.end}
        assert {name: found[name] for name in counted} == counted
        one = status.query(str(uid))
        assert (one.epochs, one.rows, one.late_rows) == tuple(counted.values())[:3]
        assert found["bad_rows"] == one.bad_rows == bad[bad["query"] == uid].rows.sum()
        assert found["state_rows"] == one.state_rows == (None if pd.isna(newest.state_rows) else newest.state_rows)
    job = shown.page["job"]
    assert (job["epochs"], job["rows"], job["late_rows"]) == (len(epochs), epochs.input_rows.sum(), 7)
    assert (job["bad_rows"], job["state_rows"]) == (bad.rows.sum(), 5)
    by_rule = pd.DataFrame(json.loads(text) for text in bad.rules).sum()
    assert shown.query("price")["rule_failures"] == by_rule.to_dict() == {"positive": 3, "known": 3}


def test_states_and_incidents_are_the_newest_ones(shown: Shown) -> None:
    states = shown.table("execution_states").sort_values(["incarnation", "since"]).groupby("operator").last()
    assert {one["uid"]: one["state"] for one in shown.page["queries"]} == states.state.drop("").to_dict()
    assert shown.page["job"]["state"] == states.state[""] == read_status(shown.state).state.value
    assert shown.page["job"]["states"] == states.state.drop("").value_counts().to_dict()
    incidents, changes = shown.table("incidents"), shown.table("incident_changes").set_index("incident_id")
    found = {one["id"]: one for one in shown.page["incidents"]}
    assert found.keys() == set(incidents.incident_id)
    for row in incidents.itertuples():
        newest = changes.loc[row.incident_id] if row.incident_id in changes.index else None
        one = found[str(row.incident_id)]
        assert (one["count"], one["status"]) == ((1, "") if newest is None else (newest["count"], newest.new))
        assert one["what"] == row.what if newest is None else row.what in one["what"] and newest.what in one["what"]


def lived(shown: Shown) -> Any:
    """From which ms on the job was up (1.0) or not: a start after a loss is up once it runs."""
    states = shown.table("execution_states").query("operator == ''")[["since", "state", "incarnation"]]
    first = {"execution_states": "since", "epochs": "committed_at", "checkpoints": "at"}
    signs = [shown.table(name).query("incarnation == 1")[column].max() for name, column in first.items()]
    # The next start has found out when the driver was seen last.
    lost = shown.table("incidents").query("type == 'driver_lost'").evidence.map(json.loads)
    signs += [pd.Timestamp(one["last_seen"]) for one in lost]
    jobs = shown.table("jobs")
    rows = [{"since": max(signs), "state": "LOST", "incarnation": 1}]
    found = pd.concat([states, pd.DataFrame(rows)]).sort_values(["incarnation", "since"], ignore_index=True)
    found["up"] = found.state.map(UP).ffill().fillna(1.0)
    found["ms"] = pd.to_datetime(found.since, utc=True).astype("datetime64[us, UTC]").astype("int64") / 1000
    found.loc[0, "ms"] = jobs["at"].min().timestamp() * 1000
    return found


def share(shown: Shown, since: timedelta | None = None) -> tuple[float, float]:
    found, now = lived(shown), shown.now.timestamp() * 1000
    begin = max(found.ms.min(), 0 if since is None else now - since.total_seconds() * 1000)
    until = found.ms.shift(-1).fillna(now).clip(lower=begin)
    length = until - found.ms.clip(lower=begin)
    return float((length * found.up).sum() / length.sum()), float((length * (1 - found.up)).sum() / 1000)


def test_all_faces_have_one_availability(shown: Shown) -> None:
    timeline = shown.page["timeline"]
    expected, down = share(shown)
    assert timeline["availability"]["all"] == pytest.approx(expected, abs=2e-5)
    assert timeline["availability"]["1d"] == pytest.approx(expected, abs=2e-5) and 0.5 < expected < 0.999
    assert timeline["down_s"] == pytest.approx(down, abs=0.02)
    assert sum(timeline["states_s"].values()) == pytest.approx(timeline["wall_s"], abs=0.02)
    half = timedelta(minutes=30)
    recently = share(shown, half)[0]
    told = json.loads(spark_ext("timeline", shown.state, "--since", "30m", "--json").stdout)["availability"]
    check = json.loads(spark_ext("check", shown.state, "--window", "30m", "--json").stdout)[0]["availability"]
    for one in (told, check):  # they look some seconds later
        assert one == pytest.approx(recently, abs=0.01)


def test_a_rate_is_that_of_the_last_minute_and_none_without_a_driver(shown: Shown) -> None:
    if not shown.alive:
        assert shown.page["job"]["rate"] is None and {one["rate"] for one in shown.page["queries"]} == {None}
        return
    now, total = round(shown.now.timestamp() * 1000), 0.0
    for uid, own in shown.epochs().groupby("query"):
        inside = (own.end.clip(upper=now) - own.begin.clip(lower=now - 60_000)).clip(lower=0) / (own.end - own.begin)
        rate = (own.input_rows * inside.clip(upper=1)).sum() / 60
        total += rate
        assert shown.query(str(uid))["rate"] == pytest.approx(rate, abs=0.11)
    assert shown.page["job"]["rate"] == pytest.approx(total, abs=0.5) and total > 0


SCRIPT = """import {durations, lags, rates} from "./plots.js";
const said = (one) => ({rates: rates(one).said, durations: durations(one).said, lags: lags(one).said});
let text = ""; for await (const part of process.stdin) text += part;
console.log(JSON.stringify(Object.fromEntries(Object.entries(JSON.parse(text)).map(([uid, one]) => [uid, said(one)]))));
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="runs the page's scripts in node")
def test_plots_say_what_the_epochs_were(shown: Shown, tmp_path: Path) -> None:
    for file in files("spark_ext.server").joinpath("page").iterdir():
        if file.name.endswith(".js"):
            (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "said.js").write_text(SCRIPT)
    given = json.dumps(shown.page["series"]["queries"])
    done = subprocess.run(["node", "said.js"], cwd=tmp_path, input=given, capture_output=True, text=True, check=True)
    for uid, own in shown.epochs().groupby("query"):
        said = json.loads(done.stdout)[uid]
        length = (own.end.max() - own.begin.min()) / 1000
        rows, mean, best = re.findall(r"([\d,.]+[KM]?) rows", said["rates"])
        assert number(rows) == own.input_rows.sum()
        assert number(mean) == pytest.approx(own.input_rows.sum() / length, rel=0.01)
        assert number(best) == pytest.approx(best_of(own), rel=0.02)
        mean_ms, most_ms = re.findall(r"([\d.]+ m?s) (?:on average|at most)", said["durations"])
        assert milliseconds(mean_ms) == pytest.approx(own.duration_ms.mean(), rel=0.06)
        assert milliseconds(most_ms) == pytest.approx(own.duration_ms.max(), rel=0.06)
        if own.lag_rows.notna().any():
            assert f"{int(own.lag_rows.max()):,} rows" in said["lags"]


def best_of(own: Any) -> float:
    """The greatest rate of 80 periods; the rows of an epoch are spread over its time, ms by ms."""
    begin, end = own.begin.min(), own.end.max()
    each = np.zeros(end - begin)
    for row in own.itertuples():
        each[row.begin - begin : row.end - begin] += row.input_rows / row.duration_ms
    period = (end - begin) / 80
    return float(np.bincount((np.arange(len(each)) // period).astype(int), each).max() / (period / 1000))


def number(text: str) -> float:
    return float(text.rstrip("KM").replace(",", "")) * {"K": 1e3, "M": 1e6}.get(text[-1], 1)


def milliseconds(text: str) -> float:
    value, unit = text.split()
    return float(value) * {"ms": 1, "s": 1000}[unit]
