"""The end of a source beside others that run on, without Spark: when it is due, its steps, and a crash between two."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spark_ext import failpoints
from spark_ext.checkpoints.final import Advance, FinalCheckpoint
from spark_ext.failpoints import FailPoint
from spark_ext.ledger.schema import ControlEventRow, FinishedRow, IncidentRow
from spark_ext.model.end_of_input import EndOffset
from spark_ext.model.lifecycle import State
from spark_ext.model.offsets import LoggedOffsets, SourceOffset
from spark_ext.model.query_offsets import finished_beside
from spark_ext.model.restarts import UntilNow
from spark_ext.queries.source_ends import ASK_AGAIN_S
from spark_ext.queries.spec import OperatorSpec
from spark_ext.spark.backend.contract import OwnEnd
from spark_ext.spark.session import formats
from tests.queries.fakes import Bench, position
from tests.support import operators

END = ["end_of_input", "committed", "close"]
POINTS: dict[Any, list[str]] = {
    FailPoint.SOURCE_BEFORE_END_OF_INPUT: END,
    FailPoint.SOURCE_BEFORE_FLAGGED: ["end_of_input", *END],
    FailPoint.SOURCE_BEFORE_ACKNOWLEDGED: END,
    FailPoint.SOURCE_BEFORE_CLOSE: ["end_of_input", "committed", "committed", "close"],
    FailPoint.SOURCE_BEFORE_CLOSED: [*END, "committed", "close"],
    FailPoint.SOURCE_CLOSED: END,
}
"""The hooks of the end in two starts, of which the first fails at a point."""


class Patient(operators.Numbers):
    """Finalized once a file is there."""

    requires_finalization = True

    @classmethod
    def name(cls) -> str:
        return "patient"

    def is_finalized(self) -> bool:
        operators.record(self.options.log, "asked", uid=self.options.uid)
        return Path(self.options.gate).exists()


class Beside(Bench):
    """A query over bounded sources and the live one `live`; its operators are real."""

    def __init__(self, folder: Path, *, format: str = "numbers", sources: Any = ("a",), **given: Any) -> None:
        super().__init__(folder, sources=[*sources, "live"], **given)
        self.log, self.gate = str(folder / "events"), folder / "gate"
        for one in (operators.Numbers, Patient):
            formats.add(one)
        options = {"log": self.log, "gate": str(self.gate)}
        found = [OperatorSpec(uid, format, {"uid": uid, **options}) for uid in sources]
        live = OperatorSpec("live", "numbers", {"uid": "live", **options})
        self.spec = replace(self.spec, sources=(*found, live))
        self.begin()

    def begin(self) -> None:
        """A start of the job."""
        self.run = self.made()
        self.run.restore(None)
        self.started()

    def hooks(self, uid: str = "a") -> list[str]:
        return [one["event"] for one in operators.events(self.log) if one["uid"] == uid]

    def flags(self) -> list[tuple[str, str, int]]:
        return [(row.kind, row.source, row.epoch) for row in self.rows(FinishedRow) if row.kind != "channel"]


@pytest.fixture
def reached(monkeypatch: pytest.MonkeyPatch) -> Any:
    def at(point: FailPoint) -> None:
        monkeypatch.setattr(failpoints, "_passed", Counter())
        monkeypatch.setenv(failpoints.VARIABLE, f"{point}=raise")

    return at


@pytest.mark.core
@pytest.mark.parametrize("point", POINTS)
def test_the_steps_left_by_a_crash_are_taken_in_the_next_start(tmp_path: Path, reached: Any, point: FailPoint) -> None:
    bench = Beside(tmp_path, restart_attempts=0)
    bench.commits(position("a"), position("live"))
    reached(point)
    bench.commits(position("a", ended=True), position("live", at=1))
    assert bench.state() is State.FAILED
    bench.query.stop()
    bench.begin()
    for at in (2, 3):
        bench.commits(position("a", ended=True), position("live", at=at))
    assert bench.flags() == [("source", "a", 1), ("closed", "a", 1)], "of the epoch in which it ended"
    assert bench.hooks() == POINTS[point] and bench.hooks("live") == []
    bench.query.stop()
    bench.begin()
    bench.tick()
    assert bench.hooks() == POINTS[point], "in a further start nothing is left to be done"


@pytest.mark.parametrize("point", POINTS)
def test_a_step_that_fails_is_tried_again_while_the_query_runs(tmp_path: Path, reached: Any, point: FailPoint) -> None:
    bench = Beside(tmp_path)
    reached(point)
    bench.commits(position("a", ended=True), position("live"))
    (incident,) = bench.rows(IncidentRow)
    assert "tried again in 100 ms" in incident.action and bench.state() is State.RUNNING
    bench.tick(0.05)
    assert len(bench.flags()) < 2 or point is FailPoint.SOURCE_CLOSED
    bench.tick(0.1)
    assert bench.hooks() == END
    assert [kind for kind, *_ in bench.flags()] == ["source", "closed"] and bench.query.starts == 1


def test_one_that_is_not_finalized_holds_up_nobody_else(tmp_path: Path) -> None:
    bench = Beside(tmp_path, format="patient", sources=("a", "b"), finalization_timeout="3 s")
    bench.commits(position("a", ended=True), position("b"), position("live"))
    for _ in range(5):
        bench.tick(ASK_AGAIN_S)
        bench.tick()
    assert bench.hooks() == ["end_of_input", *["asked"] * 6] and bench.flags() == []
    assert ["was not finalized within 3 s" in row.what for row in bench.rows(IncidentRow)] == [True]
    assert bench.state() is State.RUNNING
    bench.gate.touch()
    bench.commits(position("a", ended=True), position("b", ended=True), position("live", at=1))
    bench.tick(ASK_AGAIN_S)
    assert bench.hooks()[-3:] == ["asked", "committed", "close"]
    assert bench.flags() == [("source", "b", 1), ("closed", "b", 1), ("source", "a", 0), ("closed", "a", 0)]


@pytest.mark.parametrize("left", [None, FailPoint.SOURCE_BEFORE_ACKNOWLEDGED, FailPoint.SOURCE_BEFORE_CLOSE])
def test_the_final_checkpoint_takes_only_what_is_left(tmp_path: Path, reached: Any, left: FailPoint | None) -> None:
    bench = Beside(tmp_path)
    if left is not None:
        reached(left)
    bench.commits(position("a", ended=True), position("live"))
    bench.commits(position("a", ended=True), position("live", ended=True))
    final = FinalCheckpoint(bench.run, bench.run.operators, bench.context, 7)
    while not final.done:
        assert final.advance(bench.run.position) is Advance.STEP
    assert [one for one in bench.flags() if one[0] != "closed"] == [
        ("source", "a", 0), ("source", "live", 1), ("query", "", 1)
    ]  # fmt: skip
    assert bench.hooks("live") == END
    assert bench.hooks() == POINTS.get(left, END), "no end of input behind the flag"


def test_further_epochs_are_asked_of_a_source_that_looks_for_events(tmp_path: Path) -> None:
    bench = Beside(tmp_path, finalization_timeout="1 hour")
    bench.commits(position("a", ended=True), position("live"))
    bench.commits(position("a", ended=True), position("live", ended=True))
    hooks: Any = type("Hooks", (), {"end_of_input": lambda _: None, "not_finalized": lambda *_: "sink 'out'"})()
    final = FinalCheckpoint(bench.run, hooks, bench.context, 7)
    assert [final.advance(bench.run.position) for _ in range(2)] == [Advance.STEP, Advance.EPOCH]
    assert [row.target for row in bench.rows(ControlEventRow)] == ["source:live"]


def test_a_run_until_now_is_not_over_before_the_end_of_a_source(tmp_path: Path, reached: Any) -> None:
    bench = Beside(tmp_path, until=UntilNow())
    reached(FailPoint.SOURCE_BEFORE_CLOSED)
    bench.commits(position("a", ended=True), position("live"))
    bench.ends(own=OwnEnd(found_nothing=True, one_epoch=False))
    bench.tick()
    assert bench.state() is State.RUNNING and len(bench.flags()) == 1
    bench.tick(0.1)
    bench.tick()
    assert bench.state() is State.SUSPENDED and len(bench.flags()) == 2
    assert (bench.hooks(), bench.hooks("live")) == (END, ["committed"])


def logged(*ended: str, flushed: tuple[str, ...] = (), marker: str = "a~end") -> LoggedOffsets:
    sources = [SourceOffset(uid, ended=uid in ended).to_json() for uid in ("a", "b", "live")]
    return LoggedOffsets(3, {}, (*sources, EndOffset(marker, 1, marker in flushed).to_json(), {"logOffset": 1}))


@pytest.mark.parametrize(
    ("offsets", "under", "natives", "finished"),
    [
        (logged(), ("a",), False, set()),
        (logged("a"), ("a",), False, set()),
        (logged("a", flushed=("a~end",)), ("a",), False, {"a"}),
        (logged("a"), (), False, {"a"}),
        (logged("a"), ("a", "live"), False, {"a"}),
        (logged("a"), ("a", "?"), False, {"a"}),
        (logged("a", "b"), ("a", "b"), False, set()),
        (logged("a", "b"), ("a",), False, {"b"}),
        (logged("a", "b", "live"), (), False, set()),
        (logged("a", "b", "live"), (), True, {"a", "b", "live"}),
        (logged("a", "b", "live"), ("a", "b"), True, {"live"}),
    ],
)
def test_who_has_finished_beside_others(
    offsets: LoggedOffsets, under: tuple[str, ...], natives: bool, finished: set[str]
) -> None:
    watched = {"a~end": under} if under else {}
    assert finished_beside(offsets, ("a", "b", "live"), watched, natives=natives) == finished
