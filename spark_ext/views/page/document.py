"""The document that the page shows: a job, from what its ledger has, as plain JSON. Pure.

Times are ms since 1970 UTC. States are texts: one that this release does not know is shown as it is. What is large is
thinned out here, so that a job of 500 queries and 100,000 epochs is less than a megabyte.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

from spark_ext.ledger.heartbeat import is_silent
from spark_ext.ledger.identity import OBSERVER
from spark_ext.masking import mask
from spark_ext.views.page import graph
from spark_ext.views.page.epochs import points_each, series_of, series_of_all
from spark_ext.views.page.facts import Facts, Resets, bad_rows_of, finished_channels, newest_states, rule_failures
from spark_ext.views.page.figures import (
    NONE,
    Figures,
    exchange_of,
    figures_of,
    inboxes_of,
    query_lag,
    rates_of,
    said_of,
)
from spark_ext.views.page.history import history, stamp, timeline_of, whole
from spark_ext.views.page.incidents import lines
from spark_ext.views.timeline import DOWN, ENDED, JOB, job_state

VERSION: Final = 1
CHECKPOINTS: Final = 500  # checkpoints of the whole job that are shown: the newest ones
POINTS: Final = 240  # points of a series at most
LEAST_POINTS: Final = 16  # points of a query's series, however many queries there are
TOTAL_POINTS: Final = 8_000  # points of all series of queries together, unless the least for each are more
Row = Mapping[str, Any]


def page(facts: Facts, now: datetime, points: int = TOTAL_POINTS) -> dict[str, Any]:
    """The document of a job."""
    started = {row["incarnation"]: row for row in facts.jobs if row["event"] == "started"}
    newest, end, running = facts.newest, facts.end, facts.running
    number, ended = newest["incarnation"], end is not None
    resets = Resets.of(facts.jobs)
    found = timeline_of(facts, running)
    incidents = whole(facts.incidents, facts.changes)
    until = end or (None if running else found.spans[-1].until) or now
    figures = figures_of(facts.epochs, resets.least)
    rates = rates_of(facts.epochs, resets.least, stamp(now) or 0) if running else {}
    made_of = graph.operators(graph.newest_definitions(facts.definitions, facts.jobs))
    queries = _queries(facts, resets, figures, rates, made_of)
    state = job_state(facts.states, facts.jobs)
    lost = not ended and facts.alive is False
    beat = None if ended else facts.beats.get(number)
    each = points_each(queries, POINTS, LEAST_POINTS, points)
    document: dict[str, Any] = _masked(
        {
            "version": VERSION,
            "at": stamp(now),
            "job": {
                "name": newest["job"],
                "job_id": newest["job_id"],
                "observed": newest["kind"] == OBSERVER,
                "directory": facts.directory,
                "state": DOWN if lost else state["state"] if state else "CREATED",
                "recorded": state["state"] if state else "CREATED",
                "since": stamp(found.spans[-1].until if lost else state["since"] if state else newest["at"]),
                "reason": "the driver was lost: its end is not recorded" if lost else _error(queries, state),
                "incarnation": number,
                "lineage": max(row["lineage"] for row in facts.jobs),
                "started": stamp(newest["at"]),
                "ended": stamp(end),
                "host": newest["host"],
                "process": newest["driver_pid"],
                "alive": False if ended else facts.alive,
                "lost": lost,
                "heartbeat": stamp(beat),
                "silent": facts.alive is not False and is_silent(beat, now),
                "epochs": sum(query["epochs"] for query in queries),
                "rows": sum(query["rows"] for query in queries),
                "bad_rows": sum(query["bad_rows"] for query in queries),
                "late_rows": sum(query["late_rows"] for query in queries),
                "state_rows": _sum_of(query["state_rows"] for query in queries),
                "rate": round(sum(query["rate"] or 0 for query in queries), 1) if running else None,
                "lag": _sum_of(query["lag"]["rows"] for query in queries if query["state"] not in ENDED),
                "states": dict(Counter(query["state"] for query in queries)),
            },
            "queries": queries,
            "graph": {
                "operators": made_of,
                "edges": graph.edges(made_of),
                "exchanges": graph.exchanges(made_of, facts.exchanges),
            },
            "timeline": history(found, facts.incidents, {key: row["host"] for key, row in started.items()}, until, now),
            "series": {
                "job": series_of_all(facts.epochs, POINTS).to_json(),
                "queries": {uid: one.to_json() for uid, one in series_of(facts.epochs, each).items()},
            },
            "checkpoints": _checkpoints(facts.checkpoints),
            "channels": channels(facts, resets),
            "incidents": lines(incidents),
        }
    )
    return document


def _queries(
    facts: Facts,
    resets: Resets,
    figures: Mapping[str, Figures],
    rates: Mapping[str, float],
    made_of: Mapping[str, Mapping[str, list[dict[str, str]]]],
) -> list[dict[str, Any]]:
    """A row per query, by uid."""
    entered = newest_states(facts.states)
    entered.pop(JOB, None)
    finals = {row["query"] for row in facts.checkpoints if row["kind"] == "final" and resets.counts(row)}
    bad = bad_rows_of(facts, resets)
    gone = graph.gone(facts.jobs).keys() - made_of.keys()
    failures = rule_failures(facts, resets)
    found = []
    for uid in sorted((entered.keys() | figures.keys() | made_of.keys()) - gone):
        state = resets.state(uid, entered)
        own = figures.get(uid, NONE)
        finished = uid in finals
        lag = query_lag(said_of(facts.said, uid), own.lag, own.planned, finished=finished)
        exchange = exchange_of(said_of(facts.said, uid))
        found.append(
            {
                "uid": uid,
                "state": state["state"],
                "since": stamp(state["since"]),
                "reason": state["reason"] or "",
                "finished": finished,
                "epochs": own.epochs,
                "rows": own.rows,
                "bad_rows": bad[uid],
                "late_rows": own.late,
                "state_rows": own.state,
                "rule_failures": failures.get(uid, {}),
                "last_epoch": own.last if own.epochs else None,
                "last_ms": own.last_ms,
                "parts": dict(facts.parts.get(uid, {})),
                "committed_at": own.at or None,
                "rate": None if finished else rates.get(uid),
                "lag": lag.to_json(),
                "watermark": lag.watermark,
                "newest_row": lag.newest_row,
                "incident": state.get("incident") or "",
                "exchange": None if exchange is None else exchange.to_json(),
                "inboxes": [one.to_json() for one in inboxes_of(said_of(facts.said, uid))],
                "latencies": [
                    {"source": one.source, "way": list(one.way), "ms": one.ms, "p99_ms": one.p99_ms}
                    for one in facts.latencies.get(uid, ())
                ],
            }
        )
    return found


def _sum_of(values: Iterable[int | None]) -> int | None:
    """The sum of those that are known; None if none is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _error(queries: list[dict[str, Any]], state: Row | None) -> str:
    if state is None:
        return ""
    failed = next((query["reason"] for query in queries if state["state"] == query["state"] == "FAILED"), "")
    return str(failed or state["reason"] or "")


def _checkpoints(rows: tuple[Row, ...]) -> list[dict[str, Any]]:
    """The newest checkpoints of the whole job, oldest first: one entry each, with its newest status."""
    found: dict[int, dict[str, Any]] = {}
    for row in sorted((row for row in rows if not row["query"]), key=lambda row: (row["checkpoint_id"], row["at"])):
        one = found.setdefault(row["checkpoint_id"], {"id": row["checkpoint_id"], "ms": None, "rows": None, "path": ""})
        one |= {"kind": row["kind"], "status": row["status"], "at": stamp(row["at"]), "reason": row["reason"] or ""}
        if row["mode"]:
            one["mode"] = row["mode"]
        if row["triggered_at"] is not None and row["status"] in ("COMPLETED", "FAILED"):
            one["ms"] = round((row["at"] - row["triggered_at"]).total_seconds() * 1000)
        if row["rows_in_flight"] is not None:
            one["rows"] = row["rows_in_flight"]
        if row["path"]:
            one["path"] = row["path"]
    return [{"mode": "", **one} for one in list(found.values())[-CHECKPOINTS:]]


def _masked(value: Any) -> Any:
    """Without the secrets that this process knows; the ledger has none that its writers knew."""
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, dict):
        return {name: _masked(part) for name, part in value.items()}
    if isinstance(value, list) and value and not isinstance(value[0], int):
        return [_masked(part) for part in value]
    return value


MOST_NAMED: Final = 400  # channels of a source that are named; of more there are only the numbers


def channels(facts: Facts, resets: Resets) -> list[dict[str, Any]]:
    """Per source: how many channels have finished, of how many that are known.

    What is known of those that are being read is what the offsets of the query's newest epoch say; a source that has
    finished has no others.
    """
    done = finished_channels(facts, resets)
    ended = {(row["query"], row["source"]) for row in facts.finished if row["kind"] == "source" and resets.counts(row)}
    running: dict[tuple[str, str], list[str]] = {}
    for query, parts in facts.offsets.items():
        for part in parts if isinstance(parts, list) else ():
            if isinstance(part, Mapping) and part.get("kind") == "channels" and "uid" in part:
                running[query, part["uid"]] = list(part.get("running", {}))
    found = []
    for query, source in sorted(done.keys() | running.keys() | ended):
        own = done.get((query, source), {})
        rest = (
            [] if (query, source) in ended else [name for name in running.get((query, source), []) if name not in own]
        )
        named: list[list[Any]] = []
        if len(own) + len(rest) <= MOST_NAMED:
            named += [[name, 2 if drained else 1, epoch] for name, (epoch, drained) in own.items()]
            named += [[name, 0, None] for name in rest]
        found.append(
            {
                "query": query,
                "source": source,
                "done": len(own),
                "running": len(rest),
                "finished": (query, source) in ended,
                "channels": named,
            }
        )
    return found
