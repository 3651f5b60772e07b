"""Lifecycle validators: what must be true of any job's history, whatever was killed while it ran.

Each is a pure function from a `History` to its faults, in words. The fixture `spark` runs all of them after every test
that has started a job, and chaos after each round. The idea comes from the lifecycle tests of Apache Flink.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import Any, Final

from spark_ext.failures.labels import FailureType, Origin
from spark_ext.model import query_offsets
from spark_ext.model.end_of_input import is_end_of_input_offset
from spark_ext.model.offsets import OffsetKind, kind_of
from tests.support.history import History

Problems = list[str]
_ENDS: Final = frozenset({"RESTARTING", "FINISHING", "SUSPENDED", "FAILED", "CANCELED"})

LEGAL: Final[dict[str, frozenset[str]]] = {
    "CREATED": frozenset({"DEPLOYING", "RUNNING", "FINISHING", "FINISHED", "FAILED", "CANCELED"}),
    "DEPLOYING": _ENDS | {"SCHEDULING", "RESTORING", "RUNNING", "PAUSED"},
    "SCHEDULING": _ENDS | {"DEPLOYING", "RESTORING", "RUNNING", "PAUSED"},
    "RESTORING": _ENDS | {"DEPLOYING", "SCHEDULING", "RUNNING", "PAUSED"},
    "RUNNING": _ENDS | {"SCHEDULING", "PAUSED"},
    "PAUSED": _ENDS | {"SCHEDULING", "DEPLOYING", "RESTORING", "RUNNING"},
    "RESTARTING": frozenset({"DEPLOYING", "RUNNING", "PAUSED", "FINISHING", "SUSPENDED", "FAILED", "CANCELED"}),
    "FINISHING": frozenset({"FINISHED", "FAILED", "CANCELED"}),
    "SUSPENDED": frozenset(),
    "FINISHED": frozenset(),
    "FAILED": frozenset(),
    "CANCELED": frozenset(),
}
"""The states that may follow a state of one query within one incarnation. Repeated here, so that it checks the code."""

FINAL_STEPS: Final = ("COMPLETED", "FLAGGED", "ACKNOWLEDGED", "CLOSED")
HOOKS: Final = {"open": 0, "end_of_input": 1, "committed": 2, "final_checkpoint": 2, "close": 3}
"""Hooks of an operator's life, by rank: within one process a hook is never followed by one of a lower rank."""


RESTORE: Final = "restore"


def restarted(history: History, uid: str, *names: str) -> list[Mapping[str, Any]]:
    """An operator's events, with one named `RESTORE` where its job was restored: what has ended may begin again."""
    restores = [{"event": RESTORE, "at": row.at.timestamp()} for row in history.jobs if row.event == "restored"]
    found = history.of(uid, *names)
    return sorted([*restores, *found], key=lambda event: float(event["at"])) if restores else found


def end_of_input_once_and_last(history: History) -> Problems:
    """At most one end of input per source and start, after its last row; no row is read after it."""
    out = []
    for uid in history.uids:
        ended = False
        for event in restarted(history, uid, "open", "read", "end_of_input"):
            if event["event"] == RESTORE:
                ended = False
            elif event["event"] == "end_of_input":
                ended = True
            elif event["event"] == "read" and ended:
                out.append(f"'{uid}' read {event['channel']} [{event['start']}, {event['end']}) after its end of input")
        starts = Counter(event["pid"] for event in history.of(uid, "end_of_input"))
        # A start in the same process may announce the end again if the step after it was not recorded.
        limit = max(1, len([row for row in history.jobs if row.event == "started"]))
        out += [f"'{uid}': {count} ends of input in one process" for count in starts.values() if count > limit]
    return out


def flags_follow_commits(history: History) -> Problems:
    """A flag's epoch is committed; channels' flags are numbered without gaps; a query's flag follows its checkpoint."""
    out = []
    sequences: dict[tuple[str, str, int], list[int]] = {}
    restored = {row.lineage for row in history.jobs if row.event == "restored"}
    for flag in history.finished:
        if flag.lineage != history.lineage(flag.query):
            continue
        log = history.logs.get(flag.query)
        if log is not None and flag.epoch > log.newest:
            out.append(
                f"{flag.kind} '{flag.channel or flag.source or flag.query}' is flagged at epoch {flag.epoch}, "
                f"and '{flag.query}' has committed {log.newest}"
            )
        if flag.kind == "channel":
            sequences.setdefault((flag.query, flag.source, flag.lineage), []).append(flag.sequence)
        elif flag.kind == "query" and not any(
            # A restore copies flags, and writes their final checkpoint again.
            row.status == "COMPLETED" and (row.at <= flag.at or flag.lineage in restored)
            for row in history.finals(flag.query)
        ):
            out.append(f"query '{flag.query}' is flagged without a final checkpoint before it")
    for (query, source, _), numbers in sequences.items():
        if sorted(numbers) != list(range(1, len(numbers) + 1)):
            out.append(f"flags of '{source}' in '{query}' are numbered {sorted(numbers)}")
    return out


def claim_before_every_write(history: History) -> Problems:
    """An incarnation commits to a target only after it has claimed it, and not after a newer one has claimed it."""
    out = []
    for uid in history.uids:
        claims: list[int] = []
        for event in history.of(uid, "claim", "commit"):
            number = event["incarnation"]
            if event["event"] == "claim":
                claims.append(number)
            elif number and number not in claims:
                out.append(f"'{uid}': epoch {event['epoch']} of incarnation {number}, which had not claimed the target")
            elif number and number < max(claims):
                out.append(f"'{uid}': epoch {event['epoch']} of incarnation {number} after {max(claims)} had claimed")
    return out


def hooks_in_order(history: History) -> Problems:
    """Open, end of input, acknowledgement, close: in this order, and no event of an operator after its close."""
    out = []
    for uid in history.uids:
        rank: dict[tuple[int, int], int] = {}
        opened = 0
        for event in history.of(uid, *HOOKS):
            name = event["event"]
            if name == "committed" and not event["final"]:
                continue
            opened += name == "open"
            start = (event["pid"], opened)
            if HOOKS[name] < rank.get(start, 0):
                out.append(f"'{uid}': {name} came after a later hook of the same start")
            rank[start] = max(rank.get(start, 0), HOOKS[name])
        closed = False
        for event in restarted(history, uid):
            if event["event"] == RESTORE:
                closed = False
            if closed and event["event"] in ("read", "commit", "open", "end_of_input"):
                out.append(f"'{uid}': {event['event']} after close")
            closed = closed or event["event"] == "close"
    return out


def source_flags_are_exact(history: History) -> Problems:
    """A source has one flag in a lineage, from the epoch on with which it had ended; it is closed once, after that."""
    out = []
    kinds = ("source", "closed")
    flags = {(row.kind, row.query, row.source, row.lineage): row for row in history.finished if row.kind in kinds}
    counts = Counter((row.kind, row.query, row.source, row.lineage) for row in history.finished if row.kind in kinds)
    out += [f"'{key[2]}' has {count} flags of the kind {key[0]}" for key, count in counts.items() if count > 1]
    for (kind, query, uid, lineage), flag in flags.items():
        before = flags.get(("source", query, uid, lineage))
        if kind == "closed" and (before is None or before.epoch > flag.epoch):
            out.append(f"'{uid}' was closed at epoch {flag.epoch}, and its flag has {before and before.epoch}")
        finals = [row.epoch for row in history.finals(query)]
        log = history.logs.get(query)
        if kind == "closed" or log is None or lineage != history.lineage(query):
            continue
        here, earlier = (_end_of(log.planned.get(epoch), uid) for epoch in (flag.epoch, flag.epoch - 1))
        # A drain ends a query of Spark's own sources where it is, and its others with it.
        if here is not None and not here[0] and flag.epoch not in finals:
            out.append(f"'{uid}' is flagged at epoch {flag.epoch}, where it had not ended")
        if flag.epoch not in finals and here is not None and here == earlier:
            out.append(f"'{uid}' is flagged at epoch {flag.epoch}, and it had ended before")
    return out


def _end_of(logged: Any, uid: str) -> tuple[bool, bool] | None:
    """Whether a source had ended by an epoch, and whether its marker had passed."""
    ours = {} if logged is None else query_offsets.source_offsets(logged)
    ends = {} if logged is None else query_offsets.end_offsets(logged)
    return None if uid not in ours else (ours[uid].ended, f"{uid}~end" not in ends or ends[f"{uid}~end"].flushed)


def closed_sources_are_left_alone(history: History) -> Problems:
    """A source is closed after the hooks of its end; then nothing is called any more in that lineage, in no start."""
    out = []
    restores = {row.lineage: row.at.timestamp() for row in history.jobs if row.event == "restored"}
    for row in history.finished:
        events = history.of(row.source) if row.kind == "closed" else []
        at = row.at.timestamp()
        upto = min((begun for lineage, begun in restores.items() if lineage > row.lineage), default=math.inf)
        after = [one["event"] for one in events if max(at, restores.get(row.lineage, at)) < one.get("at", 0) < upto]
        if after:
            out.append(f"'{row.source}' was closed, and then: {', '.join(after[:5])}")
        names = {one["event"] for one in events if one.get("at", 0) <= at and one.get("final", True)}
        missing = {"end_of_input", "committed", "close"} - names
        if events and missing:
            out.append(f"'{row.source}' was closed without {', '.join(sorted(missing))}")
    return out


def legal_states(history: History) -> Problems:
    """Within an incarnation each query's execution states may follow one another, and the last one is final."""
    out = []
    runs: dict[tuple[int, str], list[str]] = {}
    for row in sorted(history.states, key=lambda row: row.since):
        if row.operator:
            runs.setdefault((row.incarnation, row.operator), []).append(row.state)
    for (incarnation, query), states in runs.items():
        for before, after in pairwise(("CREATED", *states)):
            if after != before and after not in LEGAL.get(before, ()):
                out.append(f"'{query}' went from {before} to {after} in incarnation {incarnation}")
    quiet = ("FINISHED", "SUSPENDED", "CANCELED")
    ended = {row.incarnation for row in history.jobs if row.event == "ended" and row.reason in quiet}
    for (incarnation, query), states in runs.items():
        if incarnation in ended and states[-1] not in (*quiet, "FAILED"):
            out.append(f"'{query}' is {states[-1]} although incarnation {incarnation} has ended")
    return out


def no_epoch_twice(history: History) -> Problems:
    """Each epoch is recorded once; a sink makes it visible once; numbers have no gaps."""
    out = []
    rows = Counter((row.query, row.query_id, row.lineage, row.epoch) for row in history.epochs)
    out += [f"epoch {key[3]} of '{key[0]}' is recorded {count} times" for key, count in rows.items() if count > 1]
    by_query: dict[tuple[str, str, int], set[int]] = {}
    for query, query_id, lineage, epoch in rows:
        by_query.setdefault((query, query_id, lineage), set()).add(epoch)
    restored = {row.lineage for row in history.jobs if row.event in ("restoring", "restored")}
    for (query, _, lineage), numbers in by_query.items():
        # A restored lineage begins with the epoch of the savepoint.
        begin = min(numbers) if lineage in restored else 0
        if numbers != set(range(begin, max(numbers) + 1)):
            missing = sorted(set(range(begin, max(numbers) + 1)) - numbers)
            out.append(f"epochs {missing[:5]} of '{query}' are missing in the ledger")
    first = Counter(
        (event["uid"], event.get("lineage", 0), event.get("query_id", ""), event["epoch"])
        for event in history.events
        if event["event"] == "commit" and not event["repeat"]
    )
    out += [f"'{key[0]}' made epoch {key[3]} visible {count} times" for key, count in first.items() if count > 1]
    return out


def finished_means_committed(history: History) -> Problems:
    """A finished query has committed all that it planned, all its sources have ended, and every marker has passed."""
    out = []
    for query in history.finished_queries:
        log = history.logs.get(query)
        if log is None or log.at_the_end is None:
            continue
        ours = query_offsets.source_offsets(log.at_the_end)
        natives = [raw for raw in log.at_the_end.sources if kind_of(raw) is None]
        newest = max(log.planned, default=-1)
        if newest > log.newest:
            out.append(f"'{query}' is finished, and its epoch {newest} is planned but not committed")
        # That of `with_control` has no channels, and Spark's own sources say when its query ends.
        left = [uid for uid, one in ours.items() if not one.ended and (one.running or one.sequence or not natives)]
        out += [f"'{query}' is finished, and '{uid}' has not ended" for uid in left]
        ends = [raw["uid"] for raw in log.at_the_end.sources if is_end_of_input_offset(raw)]
        if not natives and not query_offsets.flushed(log.at_the_end, ends):
            out.append(f"'{query}' is finished, and a marker of its end of input has not passed")
    return out


def final_checkpoint_in_order(history: History) -> Problems:
    """The steps of a final checkpoint are recorded in order, each once, and all belong to one checkpoint."""
    out = []
    for query in dict.fromkeys(row.query for row in history.checkpoints if row.kind == "final"):
        steps = history.finals(query)
        statuses = tuple(row.status for row in steps)
        if statuses != FINAL_STEPS[: len(statuses)]:
            out.append(f"the final checkpoint of '{query}' has the steps {statuses}")
        if len({row.checkpoint_id for row in steps}) > 1:
            out.append(f"'{query}' has several final checkpoints in one lineage")
    return out


def no_state_left(history: History) -> Problems:
    """The state stores of a finished query are empty."""
    return [
        f"'{query}' is finished, and {rows} rows are left in its state"
        for query, rows in history.state_rows.items()
        if rows and query in history.finished_queries
    ]


def incarnations_grow_by_one(history: History) -> Problems:
    """Each start has its own number, from 1 without gaps; each ends at most once."""
    started = sorted(row.incarnation for row in history.jobs if row.event == "started")
    out = [] if started == list(range(1, len(started) + 1)) else [f"incarnations {started} have started"]
    ended = Counter(row.incarnation for row in history.jobs if row.event == "ended")
    return out + [f"incarnation {number} ended {count} times" for number, count in ended.items() if count > 1]


def offsets_only_grow(history: History) -> Problems:
    """From epoch to epoch no source loses a finish, confirms less, or moves back before its end."""
    out = []
    for query, log in history.logs.items():
        for one, two in pairwise(log.planned.values()):
            before, after = query_offsets.source_offsets(one), query_offsets.source_offsets(two)
            for uid in before.keys() & after.keys():
                b, a = before[uid], after[uid]
                if a.sequence < b.sequence or a.confirmed < b.confirmed or a.control < b.control:
                    out.append(f"'{uid}' in '{query}' went back between epochs {one.epoch} and {two.epoch}")
                elif b.ended and (not a.ended or a.sequence != b.sequence):
                    out.append(f"'{uid}' in '{query}' read on after its end, in epoch {two.epoch}")
        kinds = [[kind_of(raw) for raw in logged.sources] for logged in log.planned.values()]
        if any(OffsetKind.CHANNELS in one and len(one) != len(kinds[-1]) for one in kinds):
            out.append(f"'{query}' has epochs with different numbers of sources")
    return out


def failures_are_judged(history: History) -> Problems:
    """Each failure has a type and an origin, and the exceptions on which the verdict rests."""
    types, origins = {kind.value for kind in FailureType}, {origin.value for origin in Origin}
    out = []
    for row in history.incidents:
        if row.type != "failure":
            continue
        labels, evidence = row.labels or {}, row.evidence or {}
        if labels.get("type") not in types or labels.get("origin") not in origins:
            out.append(f"the failure '{row.what[:80]}' has the labels {labels}")
        if not evidence.get("chain") or "verdict" not in evidence:
            out.append(f"the failure '{row.what[:80]}' has no evidence")
    return out


VALIDATORS: Final[tuple[Callable[[History], Problems], ...]] = (
    end_of_input_once_and_last, flags_follow_commits, claim_before_every_write, hooks_in_order, legal_states,
    no_epoch_twice, finished_means_committed, final_checkpoint_in_order, no_state_left, incarnations_grow_by_one,
    offsets_only_grow, failures_are_judged, source_flags_are_exact, closed_sources_are_left_alone,
)  # fmt: skip


def problems(history: History, *, without: Iterable[Callable[[History], Problems]] = ()) -> Problems:
    chosen: list[Any] = [validator for validator in VALIDATORS if validator not in tuple(without)]
    return [f"{validator.__name__}: {problem}" for validator in chosen for problem in validator(history)]
