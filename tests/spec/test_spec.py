"""The models of the protocols: their rules, and traces of real jobs. All of the rules run with `make spec`."""

import json
import re
from dataclasses import replace
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from spark_ext.ledger.schema import EpochRow, FinishedRow
from spark_ext.model.offsets import Finished, Running, SourceOffset
from tests.spec import checkpoint_checks, tlc, traces
from tests.spec.checks import CHANGES, CHECKS, COPIES, MUTANTS, Check, run
from tests.spec.traces import Committed, Start, Trace, Written

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
JOBS = (Start(1, 11), Start(2, 12))


@cache
def recorded() -> Trace:
    """The trace of `tests.chaos.sink_job` with nine epochs, four kills and five starts."""
    return Trace.from_json((Path(__file__).parent / "trace.json").read_text())


def txn(application: str, number: int) -> dict[str, Any]:
    return {"txn": {"appId": application, "version": number}}


def add(rows: int) -> dict[str, Any]:
    return {"add": {"stats": json.dumps({"numRecords": rows})}}


def test_a_question_is_a_configuration() -> None:
    asked = tlc.Question(
        {"Rows": 2, "Calm": True, "Queries": frozenset({"b", "a"})}, invariants=("A",), properties=("P",)
    )
    assert asked.configuration.splitlines() == [
        "SPECIFICATION Spec", "CONSTANTS", "    Rows = 2", "    Calm = TRUE", '    Queries = {"a", "b"}', "INVARIANT A",
        "PROPERTY P", "CHECK_DEADLOCK FALSE",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("output", "verdict", "broken"),
    [
        ("Model checking completed. No error has been found.", "holds", ""),
        ("Error: Invariant AtMostOnce is violated.", "refuted", "AtMostOnce"),
        ("Error: Action property Owner is violated.", "refuted", "Owner"),
        ("Error: Temporal properties were violated.", "refuted", "CanFinish"),
        ("Error: TLC threw an unexpected exception.", "unknown", ""),
        ("", "unknown", ""),
    ],
)
def test_an_answer_is_read_from_what_tlc_prints(output: str, verdict: str, broken: str) -> None:
    answer = tlc.read(output)
    assert (answer.verdict, answer.broken) == (verdict, broken)


def test_a_mutant_must_break_what_is_expected_with_a_trace() -> None:
    mutant = Check("m", CHANGES, "place", "AtMostOnce")
    step = ("Take",)
    assert mutant.problem(tlc.Answer("refuted", "AtMostOnce", step)) == ""
    assert mutant.problem(tlc.Answer("refuted", "FinishedIsComplete", step))
    assert mutant.problem(tlc.Answer("refuted", "AtMostOnce"))
    assert mutant.problem(tlc.Answer("holds"))
    assert mutant.problem(tlc.Answer("unknown"))


@pytest.mark.parametrize(
    ("module", "mutants"),
    [("commit", MUTANTS), ("checkpoint", checkpoint_checks.MUTANTS)],
    ids=["commit", "checkpoint"],
)
def test_each_rule_of_a_model_has_a_mutant(module: str, mutants: tuple[Check, ...]) -> None:
    named = set(re.findall(r'Rule\("([^"]+)"\)', (tlc.SPEC / f"{module}.tla").read_text()))
    assert named == {mutant.left_out for mutant in mutants}
    readme = (tlc.SPEC / "README.md").read_text()
    assert [rule for rule in named if f"`{rule}`" not in readme] == []


QUICK = (Check("two starts", {**COPIES, "MaxStarts": 2}), checkpoint_checks.CHECKS[0])
NEEDED = (
    "planned taken for committed", "another path under the same uid", "a cut of what was seen",
    "a release without holds", "a restore in the same lineage",
)  # fmt: skip
REFUTED = [one for one in (*MUTANTS, *checkpoint_checks.MUTANTS) if one.name in NEEDED]


@pytest.mark.parametrize("check", [*QUICK, *REFUTED], ids=lambda check: check.name)
def test_the_models_lose_nothing_and_some_rules_are_needed(check: Check) -> None:
    _, problem = run(check)
    assert problem == ""


@pytest.mark.slow(10, "goes through up to 40,000 states")
@pytest.mark.parametrize("check", [*CHECKS, *checkpoint_checks.CHECKS[1:]], ids=lambda check: check.name)
def test_the_models_hold(check: Check) -> None:
    """The first one of checkpoints does above. `make spec` looks at three starts, and at each rule left out."""
    _, problem = run(check)
    assert problem == ""


def test_the_log_of_a_table_with_and_without_start_ids() -> None:
    claim = [txn("fence:out", 1), txn("start:out", 11), txn("owner:out", 7)]
    entries: list[tuple[int, list[dict[str, Any]]]] = [
        (0, [{"metaData": {}}, *claim]),
        (1, [txn("spark_ext:out:1:q", 0), *claim[:2], add(3), add(4)]),
        (2, [{"metaData": {}}, *claim[:2]]),
        (3, [txn("fence:out", 2), txn("start:out", 12)]),
        (4, [txn("fence:out", 2), txn("start:out", 99)]),
        (5, [txn("fence:other", 3), txn("spark_ext:other:1:q", 5), add(1)]),
    ]
    assert traces.written(entries, "out", JOBS) == (
        Written(0, "claim", 1), Written(1, "epoch", 1, 1, 7), Written(2, "other"), Written(3, "claim", 2),
        Written(4, "claim", 0), Written(5, "other"),
    )  # fmt: skip
    # A log without start IDs is read by number.
    entries = [(0, [txn("fence:out", 2)]), (1, [txn("spark_ext:out:1:q", 0), txn("fence:out", 2), add(3)])]
    assert [it.start for it in traces.written(entries, "out", JOBS)] == [2, 2]


def offset(running: dict[str, int]) -> dict[str, Any]:
    return SourceOffset("in", 1, {name: Running(at) for name, at in running.items()}).to_json()


def test_rows_up_to_an_offset_include_finished_channels() -> None:
    named = (Finished(2, "b", 20),)
    written = SourceOffset("in", 1, {"c": Running(5)}, named, confirmed=1, sequence=2).to_json()
    assert traces.total([written], "in", {1: 10, 2: 20, 3: 30}) == 35
    assert traces.total([offset({"a": 3})], "elsewhere", {}) is None
    assert traces.total(None, "in", {}) is None


def test_an_epoch_without_its_offsets_has_the_targets_rows() -> None:
    def row(epoch: int, offsets: object) -> EpochRow:
        return EpochRow(
            query="q", query_id="id", epoch=epoch, lineage=1, incarnation=1, input_rows=None, committed_at=NOW,
            duration_ms=None, offsets=offsets,
        )  # fmt: skip

    flags: list[FinishedRow] = []
    target = (Written(1, "epoch", 1, 1, 4), Written(2, "epoch", 1, 2, 6))
    found = traces.commits([row(1, None), row(0, [offset({"a": 4})])], flags, "in", target)
    assert found == (Committed(1, 4), Committed(2, 10))


def test_a_trace_that_is_stored_is_the_same() -> None:
    assert Trace.from_json(recorded().to_json()) == recorded()
    assert len(recorded().commits) == 9
    assert len(recorded().jobs) == 5


def test_the_model_allows_a_killed_jobs_trace_only_in_full() -> None:
    trace = recorded()
    shortened: dict[object, Trace] = {
        (part, place): trace.without(part, place)
        for part in ("jobs", "target", "commits", "finals")
        for place in range(len(getattr(trace, part)))
    }
    at, epoch = next((place, it) for place, it in enumerate(trace.target) if it.kind == "epoch" and it.epoch == 3)

    def changed(**values: Any) -> Trace:
        return replace(trace, target=(*trace.target[:at], replace(epoch, **values), *trace.target[at + 1 :]))

    broken: dict[object, Trace] = {
        "a row too many": changed(rows=epoch.rows + 1),
        "an epoch twice": changed(epoch=2),
        "an older start, after the claim": changed(start=1),
    }
    asked = {"as recorded": trace, **shortened, **broken}
    problems = dict(zip(asked, traces.validate_all(list(asked.values())), strict=True))
    # The last start found the job finished, and wrote nothing: without it the trace is that of the moment before.
    allowed = [which for which, problem in problems.items() if not problem]
    assert allowed == ["as recorded", ("jobs", len(trace.jobs) - 1)]
    assert all("the model does not allow this trace: after " in problem for problem in problems.values() if problem)
