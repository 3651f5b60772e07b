"""State directories of jobs without Spark: a start, what its queries are made of, and what a driver would add."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from spark_ext.control import stamps
from spark_ext.ledger import Incarnation, Ledger, LedgerWriter, start_incarnation
from spark_ext.ledger.schema import ControlTransitionRow, DefinitionRow, EpochRow
from spark_ext.model.configuration import Configuration, Stamp
from spark_ext.model.control import Event
from spark_ext.model.definitions import OperatorDefinition, QueryDefinition, Role
from spark_ext.model.offsets import SourceOffset


class State:
    """The state directory of a job that this process has started."""

    def __init__(self, folder: Path, job: str = "orders", queries: Sequence[str] = ("q", "r")) -> None:
        self.path = str(folder)
        self.folder = folder
        self.ledger = Ledger(self.path)
        self.incarnation: Incarnation = start_incarnation(self.ledger, job)
        self.writer = LedgerWriter(self.ledger, self.incarnation)
        for query in queries:
            made_of = QueryDefinition(
                (
                    OperatorDefinition(f"{query}-in", Role.SOURCE, "files"),
                    OperatorDefinition(f"{query}-out", Role.SINK, "delta_2pc"),
                )
            )
            self.writer.append(
                DefinitionRow(query=query, lineage=1, incarnation=1, at=now(), definition=made_of.to_json())
            )

    def step(
        self,
        event: Event,
        status: str,
        query: str = "",
        epoch: int | None = None,
        *,
        ms: float = 10,
        reason: str = "",
        result: Any = None,
    ) -> None:
        """What a driver writes of an event, so many ms after its acceptance."""
        self.writer.append(
            ControlTransitionRow(
                event_id=event.event_id,
                sequence=event.sequence,
                status=status,
                query=query,
                epoch=epoch,
                lineage=1,
                incarnation=1,
                at=datetime.fromtimestamp(event.at_ms / 1000, timezone.utc) + timedelta(milliseconds=ms),
                reason=reason,
                result=result,
            )
        )

    def epoch(self, query: str, number: int, configuration: Configuration | None) -> Mapping[str, Any]:
        """An epoch as Spark's log has it; returns the offset."""
        checkpoint = self.folder / "queries" / query / "checkpoint"
        name = ""
        if configuration is not None:
            name = stamps.write(str(checkpoint), Stamp(configuration).text())
        control = configuration.sequence if configuration is not None else 0
        offset = SourceOffset(f"{query}-in", 1, control=control, stamp=name).to_json()
        (checkpoint / "offsets").mkdir(parents=True, exist_ok=True)
        (checkpoint / "offsets" / str(number)).write_text(f"v1\n{{}}\n{json.dumps(offset)}")
        return offset

    def committed(self, query: str, number: int, offsets: Sequence[Any]) -> None:
        """An epoch as the ledger has it."""
        self.writer.append(
            EpochRow(
                query=query,
                query_id="0",
                epoch=number,
                lineage=1,
                incarnation=1,
                input_rows=7,
                committed_at=now(),
                duration_ms=12,
                offsets=list(offsets),
            )
        )


def now() -> datetime:
    return datetime.now(timezone.utc)
