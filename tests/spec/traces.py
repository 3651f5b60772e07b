"""What a job left behind, as a trace that TLC compares with the model: `docs/spec/commit_trace.tla`.

Three places have recorded what happened, each in its own order: the ledger has the starts and the final checkpoint,
Spark's log has the epochs (the ledger keeps their offsets), and the target's log has claims and commits. Nothing is
known of the order between them, and no clock is compared.
"""

import json
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from spark_ext.ledger.schema import EpochRow, FinishedRow, JobRow
from spark_ext.model.lifecycle import FinalStep
from spark_ext.model.offsets import SourceOffset
from tests.spec.tlc import Answer, Constant, Question, ask
from tests.support.history import History


@dataclass(frozen=True)
class Start:
    number: int
    start_id: int = 0  # 0: from before starts had one


@dataclass(frozen=True)
class Written:
    version: int
    kind: Literal["claim", "epoch", "other"]
    start: int = 0  # which of the job's starts wrote it, from 1; 0: none of them
    epoch: int = 0  # from 1, as in the model
    rows: int = 0


@dataclass(frozen=True)
class Committed:
    epoch: int  # from 1, as in the model
    total: int  # rows of the source from its beginning to the end of this epoch


@dataclass(frozen=True)
class Final:
    start: int  # which of the job's starts recorded it, from 1
    epoch: int  # the last epoch, from 1


@dataclass(frozen=True)
class Trace:
    jobs: tuple[Start, ...]
    target: tuple[Written, ...]
    commits: tuple[Committed, ...]
    finals: tuple[Final, ...]

    def without(self, part: str, index: int) -> "Trace":
        events: Sequence[Any] = getattr(self, part)
        return replace(self, **{part: (*events[:index], *events[index + 1 :])})

    def to_json(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "Trace":
        raw = json.loads(text)
        return cls(
            tuple(Start(**it) for it in raw["jobs"]), tuple(Written(**it) for it in raw["target"]),
            tuple(Committed(**it) for it in raw["commits"]), tuple(Final(**it) for it in raw["finals"]),
        )  # fmt: skip

    @property
    def totals(self) -> list[int]:
        """The model's positions are the places in this list, so that they are as few as the epochs."""
        return sorted({0, *(commit.total for commit in self.commits)})

    def record(self) -> str:
        totals = self.totals
        logs = {
            "jobs": _sequence({"number": start.number} for start in self.jobs),
            "versions": _sequence(asdict(written) for written in self.target),
            "commits": _sequence({"epoch": it.epoch, "upto": bisect_left(totals, it.total)} for it in self.commits),
            "finals": _sequence(asdict(final) for final in self.finals),
            "totals": f"<<{', '.join(map(str, totals))}>>",
        }
        return f"[{', '.join(f'{name} |-> {log}' for name, log in logs.items())}]"


def _sequence(records: Iterable[Mapping[str, Any]]) -> str:
    shown = (
        "[" + ", ".join(f"{name} |-> {json.dumps(value)}" for name, value in record.items()) + "]" for record in records
    )
    return f"<<{', '.join(shown)}>>"


def validate(trace: Trace, *, limit: float = 120) -> str:
    """Ask TLC whether the model allows a trace; returns why not, "" if it does."""
    return validate_all([trace], limit=limit)[0]


def validate_all(traces: Sequence[Trace], *, limit: float = 120) -> list[str]:
    """Ask about several traces: TLC runs once for those with equally many positions."""
    alike: dict[int, list[Trace]] = {}
    for trace in traces:
        alike.setdefault(max(len(trace.totals) - 1, 1), []).append(trace)
    found = {
        id(trace): verdict(number, trace, answer)
        for positions, group in alike.items()
        for answer in [_asked(group, positions, limit)]
        for number, trace in enumerate(group, 1)
    }
    return [found[id(trace)] for trace in traces]


def _asked(traces: Sequence[Trace], positions: int, limit: float) -> Answer:
    constants: dict[str, Constant] = {
        "Rows": positions, "Batch": positions, "MaxStarts": max(1, *(len(trace.jobs) for trace in traces)),
        "Calm": False, "Copies": 0, "Queries": frozenset({"a"}), "Places": frozenset({1}), "MaxChanges": 0,
        "MaxResets": 0, "LeftOut": frozenset[str](),
    }  # fmt: skip
    records = ",\n".join(trace.record() for trace in traces)
    module = f"---- MODULE TraceData ----\nEXTENDS Sequences\nTraces == <<\n{records}\n>>\n====\n"
    question = Question(
        constants, module="commit_trace", specification="TraceSpec", constraints=("Progress",),
        extra={"TraceData.tla": module},
    )  # fmt: skip
    return ask(question, limit=limit, workers=1)


def verdict(number: int, trace: Trace, answer: Answer) -> str:
    """What TLC's answer says of the trace with this number; "" if the model allows it."""
    if answer.verdict != "holds":
        return f"TLC has no answer: {answer.output[-2000:]}"
    if f'<<"allowed", {number}>>' in answer.output:
        return ""
    furthest = max(_progress(number, answer.output), default=(0, 0, 0, 0))
    starts, written, epochs, finals = furthest
    following = trace.target[written] if written < len(trace.target) else "the end of the target's log"
    return (
        f"the model does not allow this trace: after {starts} starts, {written} versions of the target, "
        f"{epochs} epochs of Spark and {finals} final checkpoints it does not allow {following}"
    )


def _progress(number: int, output: str) -> list[tuple[int, int, int, int]]:
    found = []
    for line in output.splitlines():
        if line.startswith(f'<<"followed", {number}, '):
            _, starts, written, epochs, finals = map(int, line.removeprefix('<<"followed", ').strip(">").split(", "))
            found.append((starts, written, epochs, finals))
    return sorted(found, key=lambda it: (it[1], it[2], it[0], it[3]))


def of_job(state: Path, table: Path, *, query: str, source: str, sink: str) -> Trace:
    """The trace of one query of a job that has finished: a channel source with row numbers, and a `delta_2pc` sink."""
    history = History.read(state)
    jobs = starts(history.jobs)
    target = written(log_entries(table), sink, jobs)
    finals = tuple(
        Final(_which(jobs, row.incarnation), (row.epoch or 0) + 1)
        for row in history.checkpoints
        if row.kind == "final" and row.query == query and row.status == FinalStep.COMPLETED.value
    )
    epochs = [row for row in history.epochs if row.query == query]
    flags = [row for row in history.finished if row.kind == "channel" and row.source == source]
    return Trace(jobs, target, commits(epochs, flags, source, target), finals)


def starts(rows: Iterable[JobRow]) -> tuple[Start, ...]:
    """The job's starts in their order: Delta returns rows in any."""
    found = (Start(row.incarnation, row.start_id or 0) for row in rows if row.event == "started")
    return tuple(sorted(found, key=lambda start: start.number))


def _which(jobs: Sequence[Start], number: int, start_id: int | None = None) -> int:
    """The place of a start in the ledger, from 1; 0 if the ledger does not have it."""
    for place, start in enumerate(jobs, 1):
        if start.number == number and (start_id is None or start_id == start.start_id):
            return place
    return 0


def commits(
    epochs: Iterable[EpochRow], flags: Iterable[FinishedRow], source: str, target: Iterable[Written]
) -> tuple[Committed, ...]:
    """Spark's epochs, in order.

    Where Spark had deleted an epoch's offsets before the ledger could keep them, the target's rows are taken instead.
    """
    ended = {flag.sequence: int(flag.position) for flag in flags}
    rows = {it.epoch: it.rows for it in target if it.kind == "epoch"}
    out: list[Committed] = []
    for row in sorted(epochs, key=lambda row: row.epoch):
        known = total(row.offsets, source, ended)
        before = out[-1].total if out else 0
        epoch = row.epoch + 1
        out.append(Committed(epoch, before + rows.get(epoch, 0) if known is None else known))
    return tuple(out)


def total(offsets: Any, source: str, ended: Mapping[int, int]) -> int | None:
    """Rows of all channels up to an offset; `ended` has where flagged channels ended, by sequence."""
    for raw in offsets or ():
        if isinstance(raw, Mapping) and raw.get("uid") == source:
            offset = SourceOffset.from_json(raw)
            named = {finish.sequence: int(finish.at) for finish in offset.finished}
            confirmed = {number: at for number, at in ended.items() if number <= offset.confirmed}
            return sum(int(it.at) for it in offset.running.values()) + sum({**confirmed, **named}.values())
    return None


def log_entries(table: Path) -> list[tuple[int, list[dict[str, Any]]]]:
    files = sorted((table / "_delta_log").glob("*.json"))
    return [
        (int(file.stem), [json.loads(line) for line in file.read_text().splitlines()])
        for file in files
        if file.stem.isdigit()
    ]


def written(
    entries: Iterable[tuple[int, Sequence[Mapping[str, Any]]]], sink: str, jobs: Sequence[Start]
) -> tuple[Written, ...]:
    out: list[Written] = []
    holder: tuple[int, int | None] = (0, None)
    for version, actions in entries:
        numbers = {it["txn"]["appId"]: int(it["txn"]["version"]) for it in actions if "txn" in it}
        mark = (numbers.get(f"fence:{sink}", 0), numbers.get(f"start:{sink}"))
        epoch = next((number for name, number in numbers.items() if name.startswith(f"spark_ext:{sink}:")), None)
        start = _which(jobs, *mark)
        if epoch is not None:
            out.append(Written(version, "epoch", start, epoch + 1, _rows(actions)))
        elif mark[0] and mark != holder:
            out.append(Written(version, "claim", start))
            holder = mark
        else:
            out.append(Written(version, "other"))
    return tuple(out)


def _rows(actions: Iterable[Mapping[str, Any]]) -> int:
    adds = (it["add"] for it in actions if "add" in it)
    return sum(int(json.loads(add["stats"])["numRecords"]) for add in adds)
