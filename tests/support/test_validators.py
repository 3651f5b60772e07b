"""The validators find no fault in a good history, and each reports its own fault in a bad one."""

import re
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from spark_ext.ledger.schema import CheckpointRow, EpochRow, ExecutionStateRow, FinishedRow, IncidentRow, JobRow
from spark_ext.model.end_of_input import EndOffset
from spark_ext.model.offsets import Finished, LoggedOffsets, Running, SourceOffset
from tests.support import validators
from tests.support.history import History, QueryLog

T0 = datetime(2026, 1, 1, tzinfo=timezone.utc)


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def failure(**fields: Any) -> IncidentRow:
    row = IncidentRow(
        incident_id="i", at=at(3), job="lab", incarnation=1, operator="job 'lab', query 'q'", type="failure",
        labels={"type": "NETWORK", "origin": "spark"}, what="it failed", evidence={"chain": [{}], "verdict": {}},
        action="restart 1 in 100 ms", severity="WARNING", fingerprint="f",
    )  # fmt: skip
    return replace(row, **fields)


def event(name: str, uid: str, pid: int = 1, **fields: Any) -> dict[str, Any]:
    return {"event": name, "uid": uid, "pid": pid, **fields}


def job(event: str, seconds: float, incarnation: int = 1, reason: str = "", **fields: Any) -> JobRow:
    row = JobRow(
        job="lab", job_id="j", incarnation=incarnation, lineage=1, query="", event=event, at=at(seconds), host="h",
        driver_pid=1, driver_started=0.0, jvm_pid=None, application_id="", reason=reason,
    )  # fmt: skip
    return replace(row, **fields)


def step(status: str, seconds: float, **fields: Any) -> CheckpointRow:
    row = CheckpointRow(
        checkpoint_id=7, kind="final", query="q", epoch=2, status=status, lineage=1, incarnation=1, metadata=None,
        at=at(seconds), reason="",
    )  # fmt: skip
    return replace(row, **fields)


def flag(kind: str, seconds: float, **fields: Any) -> FinishedRow:
    row = FinishedRow(
        kind=kind, query="q", source="" if kind == "query" else "in", channel="", sequence=0, epoch=2, lineage=1,
        incarnation=1, position=None, drained=False, at=at(seconds),
    )  # fmt: skip
    return replace(row, **fields)


def epoch(number: int, **fields: Any) -> EpochRow:
    row = EpochRow(
        query="q", query_id="id", epoch=number, lineage=1, incarnation=1, input_rows=10, committed_at=at(number),
        duration_ms=5, offsets=None,
    )  # fmt: skip
    return replace(row, **fields)


def state(state: str, seconds: float, incarnation: int = 1) -> ExecutionStateRow:
    return ExecutionStateRow(operator="q", state=state, since=at(seconds), incarnation=incarnation, reason="")


def logged(number: int, offset: SourceOffset, marker: int = 0, flushed: bool = False) -> LoggedOffsets:
    return LoggedOffsets(number, {}, (offset.to_json(), EndOffset("in~end", marker, flushed).to_json()))


ONE = SourceOffset("in", 1, running={"a": Running(20)}, finished=(Finished(1, "b", 5),), sequence=1)
TWO = SourceOffset("in", 1, finished=(Finished(2, "a", 40),), confirmed=1, sequence=2, ended=True)

GOOD = History(
    events=(
        event("claim", "out", incarnation=1),
        event("open", "in"),
        event("open", "out"),
        event("read", "in", pid=2, channel="a", start=0, end=20),
        event("commit", "out", pid=3, epoch=0, incarnation=1, repeat=False, final=False),
        event("committed", "in", pid=4, final=False),
        event("read", "in", pid=2, channel="a", start=20, end=40),
        event("commit", "out", pid=3, epoch=1, incarnation=1, repeat=False, final=False),
        event("commit", "out", pid=3, epoch=1, incarnation=1, repeat=True, final=False),
        event("end_of_input", "in"),
        event("end_of_input", "out"),
        event("committed", "in", final=True),
        event("final_checkpoint", "out", epoch=2),
        event("close", "in"),
        event("close", "out"),
    ),
    jobs=(job("started", 0), job("ended", 9, reason="FINISHED")),
    checkpoints=(step("COMPLETED", 4), step("FLAGGED", 5), step("ACKNOWLEDGED", 6), step("CLOSED", 7)),
    finished=(
        flag("channel", 1, channel="b", sequence=1, epoch=0),
        flag("channel", 5, channel="a", sequence=2, epoch=1),
        flag("source", 5),
        flag("query", 5),
    ),
    epochs=(epoch(0), epoch(1), epoch(2)),
    states=(state("RUNNING", 1), state("FINISHING", 3), state("FINISHED", 8)),
    logs={
        "q": QueryLog("id", {0: logged(0, ONE), 1: logged(1, TWO, 1), 2: logged(2, TWO, 1, True)}, frozenset({0, 1, 2}))
    },
    state_rows={"q": 0},
    incidents=(failure(),),
)
"""One query without a kill: two channels, three epochs, a replay that the sink recognised, all final steps."""


def test_good_histories_pass_and_a_validator_can_be_left_out() -> None:
    assert validators.problems(GOOD) == []
    assert validators.problems(History()) == []
    assert validators.problems(replace(GOOD, checkpoints=(), finished=GOOD.finished[:1], jobs=GOOD.jobs[:1])) == []
    assert validators.problems(replace(GOOD, state_rows={"q": 3}), without=(validators.no_state_left,)) == []


def without(history: History, name: str, uid: str = "out") -> tuple[Any, ...]:
    return tuple(one for one in history.events if (one["event"], one["uid"]) != (name, uid))


def with_log(**fields: Any) -> History:
    return replace(GOOD, logs={"q": replace(GOOD.logs["q"], **fields)})


PLANNED = GOOD.logs["q"].planned
BAD: dict[str, History] = {
    r"end_of_input_once_and_last: .*'in' read a \[40, 41\) after its end of input": replace(
        GOOD, events=(*GOOD.events[:10], event("read", "in", pid=2, channel="a", start=40, end=41))
    ),
    "end_of_input_once_and_last: .*2 ends of input": replace(GOOD, events=(*GOOD.events[:11], *GOOD.events[9:11])),
    "flags_follow_commits: .*'c' is flagged at epoch 3, and 'q' has committed 2": replace(
        GOOD, finished=(*GOOD.finished, flag("channel", 6, channel="c", sequence=3, epoch=3))
    ),
    r"flags_follow_commits: .*flags of 'in' in 'q' are numbered \[2\]": replace(GOOD, finished=GOOD.finished[1:]),
    "flags_follow_commits: .*'q' is flagged without a final checkpoint": replace(GOOD, checkpoints=()),
    "claim_before_every_write: .*epoch 0 of incarnation 1, which had not claimed": replace(
        GOOD, events=without(GOOD, "claim")
    ),
    "claim_before_every_write: .*epoch 0 of incarnation 1 after 2 had claimed": replace(
        GOOD, events=(GOOD.events[0], event("claim", "out", incarnation=2), *GOOD.events[1:])
    ),
    "hooks_in_order: .*end_of_input came after a later hook": replace(
        GOOD, events=(event("end_of_input", "out"), event("close", "out"), event("end_of_input", "out"))
    ),
    "hooks_in_order: .*'out': commit after close": replace(
        GOOD, events=(*GOOD.events, event("commit", "out", epoch=3, incarnation=1, repeat=False, final=False))
    ),
    "legal_states: .*from FINISHED to RUNNING": replace(GOOD, states=(*GOOD.states, state("RUNNING", 9))),
    "legal_states: .*'q' is RUNNING although incarnation 1 has ended": replace(GOOD, states=GOOD.states[:1]),
    "no_epoch_twice: .*epoch 1 of 'q' is recorded 2 times": replace(
        GOOD, epochs=(*GOOD.epochs, epoch(1, incarnation=2))
    ),
    r"no_epoch_twice: .*epochs \[1\] of 'q' are missing": replace(GOOD, epochs=(epoch(0), epoch(2))),
    "no_epoch_twice: .*'out' made epoch 0 visible 2 times": replace(GOOD, events=(*GOOD.events[:5], *GOOD.events[4:])),
    r"failures_are_judged: .*'it failed' has the labels \{'origin': 'user'\}": replace(
        GOOD, incidents=(failure(labels={"origin": "user"}),)
    ),
    "failures_are_judged: .*has the labels": replace(
        GOOD, incidents=(failure(labels={"type": "BUG", "origin": "user"}),)
    ),
    "failures_are_judged: .*'it failed' has no evidence": replace(GOOD, incidents=(failure(evidence={"stack": "x"}),)),
    "finished_means_committed: .*its epoch 3 is planned but not committed": with_log(
        planned={**PLANNED, 3: logged(3, TWO, 1, True)}
    ),
    "finished_means_committed: .*'in' has not ended": with_log(planned={**PLANNED, 2: logged(2, ONE, 1, True)}),
    "finished_means_committed: .*a marker of its end of input has not passed": with_log(
        planned={**PLANNED, 2: logged(2, TWO, 1, False)}
    ),
    "final_checkpoint_in_order: .*COMPLETED', 'COMPLETED": replace(
        GOOD, checkpoints=(GOOD.checkpoints[0], step("COMPLETED", 4.5), *GOOD.checkpoints[1:])
    ),
    "final_checkpoint_in_order: .*several final checkpoints": replace(
        GOOD, checkpoints=(*GOOD.checkpoints[:3], step("CLOSED", 7, checkpoint_id=8))
    ),
    "no_state_left: .*3 rows are left": replace(GOOD, state_rows={"q": 3}),
    r"incarnations_grow_by_one: .*\[1, 3\] have started": replace(GOOD, jobs=(job("started", 0), job("started", 1, 3))),
    "source_flags_are_exact: .*'in' has 2 flags of the kind source": replace(
        GOOD, finished=(*GOOD.finished, flag("source", 6, incarnation=2))
    ),
    "source_flags_are_exact: .*'in' is flagged at epoch 0, where it had not ended": replace(
        GOOD, finished=(flag("source", 5, epoch=0),)
    ),
    "source_flags_are_exact: .*'in' is flagged at epoch 3, and it had ended before": replace(
        with_log(planned={**PLANNED, 3: logged(3, TWO, 1, True)}), finished=(flag("source", 5, epoch=3),)
    ),
    "source_flags_are_exact: .*'in' was closed at epoch 2, and its flag has None": replace(
        GOOD, finished=(flag("closed", 5),)
    ),
    "closed_sources_are_left_alone: .*'in' was closed, and then: committed": replace(
        GOOD, events=(event("committed", "in", at=at(6).timestamp(), final=False),), finished=(flag("closed", 5),)
    ),
    "closed_sources_are_left_alone: .*'in' was closed without committed": replace(
        GOOD, events=(event("end_of_input", "in"), event("close", "in")), finished=(flag("closed", 5),)
    ),
    "offsets_only_grow: .*'in' in 'q' went back between epochs 0 and 1": with_log(
        planned={0: logged(0, TWO), 1: logged(1, ONE)}
    ),
}


@pytest.mark.parametrize("named", BAD)
def test_a_bad_history_is_named(named: str) -> None:
    assert any(re.match(named, problem) for problem in validators.problems(BAD[named]))


def test_each_validator_has_a_bad_history() -> None:
    assert {named.partition(":")[0] for named in BAD} == {validator.__name__ for validator in validators.VALIDATORS}
