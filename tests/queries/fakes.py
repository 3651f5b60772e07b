"""Stand-ins for Spark, the ledger and time: a query's supervision without any of them, in milliseconds."""

import errno
import functools
import json
import threading
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeVar

import pytest

from spark_ext.control.requests import Accepted, ControlRefused, Request
from spark_ext.failures.classifier import Classifier
from spark_ext.failures.evidence import Evidence, Raised
from spark_ext.ledger import Incarnation
from spark_ext.ledger.schema import ControlEventRow, ControlTransitionRow, ExecutionStateRow, FinishedRow, Row
from spark_ext.ledger.view import event_of
from spark_ext.ledger.write_behind import WriteBehind
from spark_ext.model.lifecycle import State
from spark_ext.model.offsets import Finished, SourceOffset
from spark_ext.model.restarts import UntilNow
from spark_ext.queries.assembly import query_run
from spark_ext.queries.context import JobContext
from spark_ext.queries.describe_failure import SparkFailure
from spark_ext.queries.operator_hooks import OperatorHooks
from spark_ext.queries.run import QueryRun
from spark_ext.queries.spark_query import End
from spark_ext.queries.spec import OperatorSpec, QuerySpec
from spark_ext.queries.worker import Outcome, Worker, outcome_of
from spark_ext.settings import JobSettings
from spark_ext.spark.backend.contract import OwnEnd
from spark_ext.spark.logs.spark_log import SparkLog
from spark_ext.spark.watching.query_events import Hint

R = TypeVar("R")
T = TypeVar("T")
QUERY_ID = "fake-id"


def java_failure(kind: str, message: str) -> SparkFailure:
    evidence = Evidence((Raised(kind, message),))
    return SparkFailure(f"{kind}: {message}", evidence, Classifier().judge(evidence))


TASK_LOST = java_failure("org.apache.spark.SparkException", "ExecutorLostFailure (executor 1 exited): a task was lost")
"""A failure that may pass."""


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


STALE = OSError(errno.ESTALE, "Stale file handle")  # what a read of a lost network mount raises


class Storage:
    def __init__(self) -> None:
        self.problem: Exception | None = None  # what a look at it raises
        self.answers = threading.Event()  # not set: a look at it hangs
        self.answers.set()
        self.looks = 0

    def look(self) -> None:
        self.looks += 1
        self.answers.wait()
        if self.problem is not None:
            raise self.problem

    def under_spark_log(self, monkeypatch: pytest.MonkeyPatch, *methods: str) -> "Storage":
        """Keep Spark's logs on it, or only what these methods read of them."""
        for name in methods or ("is_committed", "newest_commit", "newest_offsets", "offsets", "committed_at"):
            monkeypatch.setattr(SparkLog, name, self._before(getattr(SparkLog, name)))
        return self

    def _before(self, read: Callable[..., T]) -> Callable[..., T]:
        @functools.wraps(read)
        def look_and_read(*given: Any) -> T:
            self.look()
            return read(*given)

        return look_and_read


class FakeLedger:
    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.newest = 1
        self.storage = Storage()

    def of(self, kind: type[R]) -> list[R]:
        return [row for row in self.rows if isinstance(row, kind)]

    def newest_incarnation(self) -> int:
        self.storage.look()
        return self.newest

    def control_since(self, sequence: int) -> list[ControlEventRow]:
        return [row for row in self.of(ControlEventRow) if row.sequence > sequence]

    def open_control_events(self) -> list[ControlEventRow]:
        over = {row.event_id for row in self.of(ControlTransitionRow) if not row.query}
        return [row for row in self.of(ControlEventRow) if row.event_id not in over]


class FakeControlLog:
    def __init__(self, ledger: FakeLedger) -> None:
        self.ledger = ledger

    def accept(self, requests: Sequence[Request]) -> list[Accepted | ControlRefused]:
        out: list[Accepted | ControlRefused] = []
        for asked in requests:
            sequence = len(self.ledger.of(ControlEventRow)) + 1
            row = ControlEventRow(
                event_id=f"e{sequence}", sequence=sequence, kind=asked.kind, target=asked.target, value=asked.value,
                status="accepted", lineage=1, incarnation=1, at=datetime.now(timezone.utc), reason="",
                delivery="immediate",
            )  # fmt: skip
            self.ledger.rows.append(row)
            out.append(Accepted(event_of(row)))
        return out


class FakeWriter:
    def __init__(self, ledger: FakeLedger) -> None:
        self.ledger = ledger
        self.incarnation = Incarnation("lab", "job-id", 1, 1)
        self.failures: list[Exception] = []  # raised by the next appends, one each
        self.storage = Storage()
        self.ended: list[str] = []  # how the incarnation has ended
        self.forgotten = False  # whether this process knows that it no longer runs

    def append(self, rows: Sequence[Row]) -> None:
        self.storage.look()
        if self.failures:
            raise self.failures.pop(0)
        self.ledger.rows.extend(rows)

    def end(self, reason: str) -> None:
        self.forget()
        self.ended.append(reason)

    def forget(self) -> None:
        self.forgotten = True


class FakeQuery:
    """A query as Spark runs it: it writes the checkpoint directory, and ends when a test says so."""

    def __init__(self, checkpoint: Path) -> None:
        self.checkpoint = checkpoint
        self.starts = 0
        self.running = False
        self.only_planned = False  # whether the last start was for the planned epoch alone
        self.refusals: list[Exception] = []  # raised by the next starts, one each
        self.hints: list[Hint] = []  # what Spark reports when it is asked
        self._end: End | None = None

    @property
    def started(self) -> bool:
        return self.starts > 0

    @property
    def ended(self) -> bool:
        return self._end is not None

    def start(self, *, only_planned: bool = False) -> str:
        assert not self.running, "Spark runs a query only once"
        self._end = None
        if self.refusals:
            raise self.refusals.pop(0)
        self.starts += 1
        self.only_planned = only_planned
        self.running = True
        self._write("metadata", json.dumps({"id": QUERY_ID}))
        return QUERY_ID

    def settle(self) -> None:
        assert not self.running

    def stop(self) -> None:
        if self.running:
            self.end()

    def take_end(self) -> End | None:
        end, self._end = self._end, None
        return end

    @property
    def handle(self) -> None:
        return None

    @property
    def phase(self) -> str:
        return ""

    @property
    def working(self) -> bool:
        return False

    def reports(self, after: int) -> list[Hint]:
        return [hint for hint in self.hints if hint.epoch is not None and hint.epoch > after]

    def plan(self, *sources: Any, epoch: int | None = None) -> int:
        """Plan the next epoch; a source's offset is one of ours or any JSON."""
        epoch = len(list((self.checkpoint / "offsets").glob("*"))) if epoch is None else epoch
        lines = [json.dumps(one.to_json() if isinstance(one, SourceOffset) else one) for one in sources]
        self._write(f"offsets/{epoch}", "\n".join(["v1", "{}", *lines]))
        return epoch

    def commit(self, *sources: Any, epoch: int | None = None) -> int:
        epoch = self.plan(*sources, epoch=epoch)
        self._write(f"commits/{epoch}", "v1\n{}")
        return epoch

    def commit_planned(self) -> None:
        newest = max(int(path.name) for path in (self.checkpoint / "offsets").iterdir())
        self._write(f"commits/{newest}", "v1\n{}")

    def end(self, failure: BaseException | None = None, own: OwnEnd | None = None) -> None:
        """End, by itself or with a failure; `own` is what Spark says about an end of its own."""
        assert self.running
        self.running, self._end = False, End(failure, own)

    def _write(self, name: str, text: str) -> None:
        place = self.checkpoint / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)


class Inline(Worker):
    def __init__(self) -> None:
        super().__init__("inline", lambda: None)

    def do(self, what: str, action: Callable[[], T], then: Callable[[Outcome[T]], None]) -> None:
        then(outcome_of(action))

    def abandon(self, last: Callable[[], object]) -> None:
        last()


class Bench:
    """One supervised query, with everything around it made by hand.

    `natives` describes Spark's own sources in it, `sources` and `fed` have the uids of channel sources and of
    those that read exchanges. `around` is the bench of another query of the same job.
    """

    def __init__(
        self, folder: Path, *, natives: Sequence[str] = (), sources: Sequence[str] = ("in",), fed: Sequence[str] = (),
        ends: Sequence[OperatorSpec] = (), available_now: bool = False, query: str = "q",
        around: "Bench | None" = None, worker: Worker | None = None, until: UntilNow | None = None, **settings: Any,
    ) -> None:  # fmt: skip
        self._until = until
        self.clock: Clock = Clock() if around is None else around.clock
        self.ledger: FakeLedger = FakeLedger() if around is None else around.ledger
        self.writer: FakeWriter = FakeWriter(self.ledger) if around is None else around.writer
        self.context: JobContext = self._context(folder, settings) if around is None else around.context
        options = {"path": str(folder / "exchange")}
        operators = [OperatorSpec(uid, "exchange", {"uid": uid, **options}) for uid in (*sources, *fed)]
        nothing: Any = None
        self.spec = QuerySpec(query, nothing, (*operators,), (*ends,), (*natives,), None, "noop", available_now)
        self.query = FakeQuery(folder / "state" / "queries" / query / "checkpoint")
        self.worker: Worker = worker or Inline()
        self.run = self.made()

    def _context(self, folder: Path, settings: dict[str, Any]) -> JobContext:
        return JobContext(
            job="lab",
            job_id="job-id",
            state=str(folder / "state"),
            settings=JobSettings(**{"monitor_interval": 0, **settings}),
            incarnation=self.writer.incarnation,
            registry=folder / "registry",
            write_behind=WriteBehind(self.writer, "lab"),  # type: ignore[arg-type]
            wake=threading.Event(),
            control=FakeControlLog(self.ledger),
            until=self._until,
        )

    def made(self) -> QueryRun:
        made: dict[str, Any] = {
            "in_spark": lambda *_: self.query, "workers": lambda *_: self.worker, "clock": self.clock,
        }  # fmt: skip
        flags = [(row.kind, row.source) for row in self.ledger.of(FinishedRow) if row.kind != "channel"]
        return query_run(self.spec, self.context, 1, {}, flags, **made)

    def started(self) -> "Bench":
        self.run.start()
        return self

    @staticmethod
    def native(folder: Path, **given: Any) -> "Bench":
        """A running query with one of Spark's own sources."""
        return Bench(folder, natives=["rate"], sources=[], **given).started()

    def state(self) -> State:
        """Not a property: mypy would keep what an earlier assertion has found."""
        return self.run.state

    def commits(self, *sources: Any) -> None:
        self.query.commit(*sources)
        self.tick()

    def ends(self, failure: BaseException | None = None, own: OwnEnd | None = None) -> None:
        self.query.end(failure, own)
        self.tick()

    def tick(self, seconds: float = 0.0, *, times: int = 1) -> None:
        for _ in range(times):
            self.clock.now += seconds
            self.run.tick(self.clock.now)

    def rows(self, kind: type[R]) -> list[R]:
        self.context.write_behind.flush()
        return self.ledger.of(kind)

    def states(self) -> list[str]:
        return [row.state for row in self.rows(ExecutionStateRow) if row.operator == self.spec.uid]


def without_source_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sources of a format that is made up end beside others."""
    for hook in ("end_of_source", "acknowledge_last", "close_source"):
        monkeypatch.setattr(OperatorHooks, hook, lambda *_: None)


def position(uid: str = "in", *, finished: int = 0, ended: bool = False, at: int = 0, barrier: int = 0) -> SourceOffset:
    """An offset: so many channels have finished in it, and the source has read so far."""
    finishes = tuple(Finished(number, f"c{number}", 0) for number in range(1, finished + 1))
    return SourceOffset(uid, finished=finishes, sequence=finished, ended=ended, stage=at or None, barrier=barrier)
