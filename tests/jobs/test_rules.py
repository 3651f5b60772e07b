"""Rules in jobs: predicates as Spark judges them, against pandas; what is refused before the start; batch reads."""

import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

import spark_ext as sx
from spark_ext.bad_rows.rules import COLUMN, OnFail
from spark_ext.errors import ConfigurationError, JobFailedError
from spark_ext.ledger.schema import BadRowsRow, IncidentRow
from spark_ext.views.status import read_status
from tests.support.jobs import JobHarness

# By the rule's name its SQL, the same in pandas, and what becomes of rows that fail it. Nulls fail.
RULES: dict[str, tuple[str, Callable[[pd.DataFrame], Any], OnFail]] = {
    "positive": ("amount > 0", lambda rows: (rows.amount > 0).fillna(False), "quarantine"),
    "known": ("what IS NOT NULL", lambda rows: rows.what.notna(), "quarantine"),
    "even-or-null": (
        "amount % 2 = 0 OR amount IS NULL -- nulls pass",
        lambda rows: rows.amount.isna() | (rows.amount % 2 == 0).fillna(False),
        "drop",
    ),
    "few": ("id < 350", lambda rows: rows.id < 350, "count"),
    "paired": ("amount <> length(what)", lambda rows: (rows.amount != rows.what.str.len()).fillna(False), "count"),
}
LEAVING = [name for name, (_, _, on_fail) in RULES.items() if on_fail in ("quarantine", "drop")]
ASIDE = [name for name, (_, _, on_fail) in RULES.items() if on_fail == "quarantine"]


def made(count: int, seed: int) -> pd.DataFrame:
    drawn = np.random.default_rng(seed)
    amount = pd.array(drawn.integers(-5, 20, count), "Int64")
    amount[drawn.random(count) < 0.1] = pd.NA
    what = pd.array([None if one < 0.1 else "x" * int(one * 15) for one in drawn.random(count)], "string")
    return pd.DataFrame({"id": range(count), "amount": amount, "what": what})


def frame(spark: SparkSession, folder: Path, *, batch: bool = False) -> DataFrame:
    reader = sx.read(spark, batch=batch).format("files").schema("id bigint, amount bigint, what string")
    return reader.options(uid="in", path=str(folder / "in"), max_rows_per_epoch=150).load()


def judged(df: DataFrame, **wanted: OnFail) -> DataFrame:
    for name, (predicate, _, on_fail) in RULES.items():
        df = sx.expect(df, name, predicate, on_fail=wanted.get(name.replace("-", "_"), on_fail))
    return df


def writer(lab: JobHarness, rows: DataFrame, *, out: str = "out", **options: str) -> DataStreamWriter:
    return rows.writeStream.format("delta_2pc").options(uid=out, path=str(lab.folder / out), **options)


def ids(place: Path) -> list[int]:
    return sorted(pa.table(DeltaTable(str(place)).scan())["id"].to_pylist())


@pytest.fixture
def rows(lab: JobHarness) -> pd.DataFrame:
    (lab.folder / "in").mkdir()
    found = made(400, seed=1)
    for part in range(4):
        found[part::4].to_parquet(lab.folder / "in" / f"{part}.parquet", index=False)
    return found


@pytest.mark.core
@pytest.mark.slow(20, "the first job of the process")
def test_rows_and_counts_are_those_of_pandas(lab: JobHarness, rows: pd.DataFrame) -> None:
    """In the table, the table of bad rows, the result, the status, the ledger and incidents; in several epochs."""
    job = sx.Job(lab.spark, "lab", state=lab.folder / "state")
    job.add("q", writer(lab, judged(frame(lab.spark, lab.folder)), on_bad_row="quarantine"))
    result = job.run(progress=False)
    passes = pd.DataFrame({name: judge(rows).astype(bool) for name, (_, judge, _) in RULES.items()})
    aside = rows[~passes[ASIDE].all(axis=1)]
    good = rows[passes[LEAVING].all(axis=1)]
    dropped = len(rows) - len(good) - len(aside)
    assert min(len(aside), len(good), dropped) > 20, "the example has rows of each kind"
    assert result.finished and result.query("q").bad_rows == len(aside)
    assert ids(lab.folder / "out") == good.id.tolist()
    written = pa.table(DeltaTable(str(lab.folder / "out")).scan())
    assert written.column_names == ["id", "amount", "what"]
    table = pa.table(DeltaTable(str(lab.folder / "state/bad_rows/table")).scan()).to_pylist()
    assert sorted(json.loads(row["raw"])["id"] for row in table) == aside.id.tolist()
    for row in table:
        failed = [name for name, passed in passes.loc[json.loads(row["raw"])["id"]].items() if not passed]
        assert row["rules"] == failed and all(f"rule '{name}' (" in row["reason"] for name in failed)
    failures = {name: int(count) for name, count in (~passes).sum().items()}
    assert dict(result.query("q").rule_failures) == failures == result.to_json()["queries"][0]["rule_failures"]
    assert dict(read_status(str(lab.folder / "state")).query("q").rule_failures) == failures
    told = [row.rules for row in lab.ledger.table(BadRowsRow).rows()]
    assert len(told) > 1 and pd.DataFrame(told).sum().astype(int).to_dict() == failures
    incidents = [row.what for row in lab.ledger.table(IncidentRow).rows([("type", "=", "bad_rows")])]
    assert len(incidents) == 2 and any("rule 'even-or-null'" in what for what in incidents)
    shown = str(result)
    assert f"{failures['few']} rows failed rule 'few'" in shown and f"{len(aside)} bad rows put aside" in shown
    assert ids(lab.folder / "out") == sorted(
        row.id for row in judged(frame(lab.spark, lab.folder, batch=True)).collect()
    )


def test_a_rule_that_fails_stops_the_job_and_a_later_start_continues(lab: JobHarness, rows: pd.DataFrame) -> None:
    """Rules are no part of what a query is made of: others may be given at each start."""

    def run(on_fail: OnFail) -> Any:
        job = sx.Job(lab.spark, "lab", state=lab.folder / "state")
        df = sx.expect(frame(lab.spark, lab.folder), "few", "id < 350", on_fail=on_fail)
        return job.add("q", writer(lab, sx.expect(df, "seen", "true", on_fail="drop"))).run(progress=False)

    with pytest.raises(JobFailedError) as failed:
        run("fail")
    said = str(failed.value)
    assert "rows fail rule 'few' (id < 350)" in said and '"id": 3' in said and "nothing of this epoch" in said
    row = lab.ledger.table(IncidentRow).rows([("type", "=", "failure")])[-1]
    assert "USER_DATA" in json.dumps(row.labels), row
    result = run("drop")
    assert dict(result.query("q").rule_failures) == {"few": 50} and ids(lab.folder / "out") == list(range(350))


@pytest.mark.slow(20, "runs a job five times")
@pytest.mark.parametrize("seed", [1])
def test_rows_are_judged_by_the_rules_of_the_run_that_reads_them(lab: JobHarness, seed: int) -> None:
    """Between runs rules are added and removed, say otherwise under the same name, and do otherwise with what fails."""
    drawn, place = random.Random(seed), lab.folder / "in"
    place.mkdir()
    good, aside, failures = list[int](), dict[int, list[str]](), Counter[str]()
    for run in range(5):
        rows = made(100, seed=seed * 10 + run).assign(id=range(100 * run, 100 * run + 100))
        rows.to_parquet(place / f"{run}.parquet", index=False)
        reader = lab.spark.readStream.format("files").schema("id bigint, amount bigint, what string")
        df = reader.options(uid="in", path=str(place), watch="true", max_rows_per_epoch=70).load()
        chosen = drawn.sample(sorted(RULES), drawn.randint(0, len(RULES)))
        does: dict[str, OnFail] = {name: drawn.choice(["quarantine", "drop", "count"]) for name in chosen}
        # The name of a rule may stand for another predicate by the next run.
        says = dict(zip(chosen, drawn.sample(chosen, len(chosen)) if drawn.random() < 0.5 else chosen, strict=True))
        for name in chosen:
            df = sx.expect(df, name, RULES[says[name]][0], on_fail=does[name])
        job = sx.Job(lab.spark, "lab", state=lab.folder / "state")
        result = job.add("q", writer(lab, df, on_bad_row="quarantine")).run(until="now", progress=False)
        failed = {name: ~RULES[says[name]][1](rows).astype(bool) for name in chosen}
        counts = {name: int(one.sum()) for name, one in failed.items() if one.any()}
        assert dict(result.query("q").rule_failures) == counts
        failures.update(counts)
        for at, id in enumerate(rows.id):
            names = [name for name in chosen if failed[name].iloc[at]]
            if any(does[name] == "quarantine" for name in names):
                aside[id] = names
            elif not any(does[name] == "drop" for name in names):
                good.append(id)
    assert ids(lab.folder / "out") == good and aside
    table = pa.table(DeltaTable(str(lab.folder / "state/bad_rows/table")).scan()).to_pylist()
    assert {json.loads(row["raw"])["id"]: row["rules"] for row in table} == aside and len(table) == len(aside)
    status = read_status(str(lab.folder / "state")).query("q")
    assert (dict(status.rule_failures), status.bad_rows) == (dict(failures), len(aside))


def test_a_share_stops_the_job(lab: JobHarness, rows: pd.DataFrame) -> None:
    df = sx.expect(frame(lab.spark, lab.folder), "few", "id < 50", on_fail="drop", max_share=0.5)
    with pytest.raises(JobFailedError, match=r"rows fail rule 'few' \(id < 50\): 8\d\.\d\d%, more than max_share=0.5"):
        sx.Job(lab.spark, "lab", state=lab.folder / "state").add("q", writer(lab, df)).run(progress=False)


def test_rows_are_judged_before_an_aggregation_by_way_of_an_exchange(lab: JobHarness, rows: pd.DataFrame) -> None:
    job = sx.Job(lab.spark, "lab", state=lab.folder / "state")
    x = job.exchange("x", partitions=2, key="what")
    job.add("judged", x.write(sx.expect(frame(lab.spark, lab.folder), "few", "id < 350", on_fail="drop")))
    job.add("q", writer(lab, x.read("x-in").select("id", "what")))
    assert dict(job.run(progress=False).query("judged").rule_failures) == {"few": 50}
    assert ids(lab.folder / "out") == list(range(350))


BAD = {
    "not boolean": ("amount", "BOOLEAN"),
    "null": ("null", "BOOLEAN"),
    "unknown column": ("amout > 0", "amout"),
    "aggregate": ("sum(amount) > 0", "AGGREGATE"),
    "window": ("row_number() OVER (ORDER BY id) > 1", "WINDOW"),
    "random": ("rand() > 0.5", "NON_DETERMINISTIC"),
    "partition": ("spark_partition_id() = 0", "NON_DETERMINISTIC"),
    "subquery": ("amount > ( SELECT 1)", "subquery"),
    "in a subquery": ("id IN (SELECT 1)", "subquery"),
    "generator": ("explode(array(true))", "BOOLEAN"),
    "syntax": ("amount >", "PARSE_SYNTAX_ERROR"),
    "two": ("amount > 0, id > 0", "PARSE_SYNTAX_ERROR"),
    "closed": ("amount > 0) OR (true", "PARSE_SYNTAX_ERROR"),
}


@pytest.mark.parametrize("batch", [False, True], ids=["stream", "batch"])
def test_what_cannot_be_judged_row_by_row_is_refused_by_name(lab: JobHarness, rows: pd.DataFrame, batch: bool) -> None:
    df = frame(lab.spark, lab.folder, batch=batch)
    for predicate, word in BAD.values():
        with pytest.raises(ConfigurationError) as refused:
            sx.expect(df, "mine", predicate, on_fail="count")
        assert refused.value.operator == "rule 'mine'" and predicate in refused.value.what, refused.value
        assert word in refused.value.what, refused.value
    given: list[tuple[dict[str, Any], str]] = [
        ({"name": "a b"}, "cannot be a rule's name"),
        ({"on_fail": "ignore"}, "on_fail is 'ignore'"),
        ({"max_share": 1.5}, "max_share is 1.5"),
        ({"max_share": 0.5, "on_fail": "fail"}, "max_share is 0.5 with on_fail='fail'"),
        ({"name": "first"}, "has a rule of this name already"),
    ]
    first = sx.expect(df, "first", "'(select' <> what", on_fail="count")
    for options, words in given:
        with pytest.raises(ConfigurationError, match=words):
            sx.expect(first, **{"name": "mine", "predicate": "id > 0", "on_fail": "drop", **options})


def test_what_a_job_could_not_carry_out_is_refused_when_the_query_is_added(lab: JobHarness, rows: pd.DataFrame) -> None:
    df = frame(lab.spark, lab.folder)
    rule = sx.expect(df, "few", "id < 350", on_fail="drop")
    aside = sx.expect(df, "few", "id < 350", on_fail="quarantine")
    later = {
        "filter": rule.where("id > 3"),
        "columns": rule.select("id"),
        "all columns": rule.select("*"),
        "aggregate": rule.groupBy("id").count(),
        "union": rule.union(rule),
        "dropped": rule.drop(COLUMN),
        "join": rule.join(lab.spark.range(3), "id"),
    }
    for name, one in later.items():
        with pytest.raises(ConfigurationError, match="other operations follow the rules"):
            sx.Job(lab.spark, "lab", state=lab.folder / "state").add("q", writer(lab, one))
            pytest.fail(name)
    with pytest.raises(ConfigurationError, match="other operations follow them"):
        sx.expect(rule.where("id > 3"), "more", "id > 0", on_fail="drop")
    x = sx.Job(lab.spark, "lab", state=lab.folder / "state").exchange("x", partitions=2)
    refusals = {
        "has on_bad_row=fail": writer(lab, aside),
        "is for sinks of this library": rule.writeStream.format("noop"),
        "cannot put rows aside": x.write(aside),
    }
    for words, given in refusals.items():
        with pytest.raises(ConfigurationError, match=words):
            sx.Job(lab.spark, "lab", state=lab.folder / "state").add("q", given)
    assert not (lab.folder / "state").exists()


def test_a_batch_fails_on_a_row_although_another_rule_leaves_it_out(lab: JobHarness) -> None:
    """As in a job each row is judged by all rules."""
    df = lab.spark.sql("SELECT * FROM VALUES (1, 1), (null, null), (3, 3) AS rows(id, amount)")
    dropped = sx.expect(df, "positive", "amount > 0", on_fail="drop")
    assert [row.id for row in dropped.where(F.col("id") > 1).collect()] == [3]
    assert sx.expect(dropped, "seen", "id > 1", on_fail="count").count() == 2
    with pytest.raises(PySparkException, match=r"\[DATA\] a row fails rule 'known' \(id IS NOT NULL\)"):
        sx.expect(dropped, "known", "id IS NOT NULL", on_fail="fail").collect()
