"""What several views read from a ledger: rows as plain values, the newest latencies, and whether a driver lives."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from spark_ext.ledger.columns import from_json, from_json_many
from spark_ext.ledger.heartbeat import last_beat
from spark_ext.ledger.incarnation import is_alive
from spark_ext.ledger.schema import IncidentRow, LatencyRow, Row
from spark_ext.views.snapshot import LatencySnapshot

if TYPE_CHECKING:
    from spark_ext.ledger import Ledger


def rows_of(ledger: Ledger, row_type: type[Row], *columns: str) -> list[dict[str, Any]]:
    """A table's rows as plain values, with all columns or only these; none if the table does not exist yet."""
    rows: list[dict[str, Any]] = ledger.table(row_type).read(columns=list(columns) or None).to_pylist()
    return rows


def latencies_of(ledger: Ledger, incarnation: int) -> dict[str, tuple[LatencySnapshot, ...]]:
    """The latencies that were recorded last in a start, by query; each by source and way."""
    rows = ledger.table(LatencyRow).read(where=[("incarnation", "=", incarnation)])
    # There may be many: only the newest ones become Python's.
    keys = ("query", "source", "way")
    values = [name for name in rows.column_names if name not in keys]
    newest = rows.sort_by("markers").group_by(keys, use_threads=False).aggregate([(name, "last") for name in values])
    found: dict[str, tuple[LatencySnapshot, ...]] = {}
    for row in sorted(
        newest.to_pylist(), key=lambda row: (row["query"], row["source"], from_json(row["way"], LatencyRow, "way"))
    ):
        one = LatencySnapshot(
            source=row["source"],
            ms=row["latency_ms_last"],
            at=row["at_last"],
            hops=tuple((hop, ms) for hop, ms in from_json(row["hops_last"], LatencyRow, "hops")),
            way=tuple(from_json(row["way"], LatencyRow, "way")),
            markers=row["markers_last"],
            p50_ms=row["p50_ms_last"],
            p95_ms=row["p95_ms_last"],
            p99_ms=row["p99_ms_last"],
        )
        found[row["query"]] = (*found.get(row["query"], ()), one)
    return found


def beats_of(
    ledger: Ledger, jobs: Sequence[Mapping[str, Any]], lost: Sequence[Mapping[str, Any]] | None = None
) -> dict[int, datetime]:
    """When incarnations without a recorded end were last alive: as the next start found, or by the heartbeat.

    `lost` is the evidence of the incidents `driver_lost`; None: it is read.
    """
    found: dict[int, datetime] = {}
    if lost is None:
        rows = ledger.table(IncidentRow).read(["evidence"], [("type", "=", "driver_lost")])
        lost = [one for one in from_json_many(rows["evidence"].to_pylist(), IncidentRow, "evidence") if one]
    for evidence in lost:
        found[evidence["incarnation"]] = datetime.fromisoformat(evidence["last_seen"])
    ended = {row["incarnation"] for row in jobs if row["event"] == "ended"} | found.keys()
    for row in jobs:
        if row["event"] == "started" and row["incarnation"] not in ended:
            beat = last_beat(ledger.uri, row["incarnation"], row["start_id"], ledger.storage_options)
            if beat is not None:
                found[row["incarnation"]] = beat
    return found


def driver_alive(started: Mapping[str, Any]) -> bool | None:
    """Whether the driver that wrote a `started` row of `jobs` is running; None: it is on another machine."""
    if started["host"] != socket.gethostname():
        return None
    return is_alive(started["driver_pid"], started["driver_started"])
