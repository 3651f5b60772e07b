"""State directories of jobs without Spark: a start, what its queries are made of, and what a driver would add."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from spark_ext.control import stamps
from spark_ext.control.log import ControlLog
from spark_ext.control.requests import Accepted, ControlRefused, Request
from spark_ext.ledger import Incarnation, Ledger, LedgerWriter, start_incarnation
from spark_ext.ledger.schema import ControlTransitionRow, DefinitionRow, EpochRow
from spark_ext.model.configuration import Configuration, Stamp
from spark_ext.model.control import Event
from spark_ext.model.definitions import OperatorDefinition, QueryDefinition, Role
from spark_ext.model.offsets import SourceOffset
from spark_ext.model.query_offsets import source_offsets
from spark_ext.spark.logs.spark_log import SparkLog
from tests.support.waiting import until


class State:
    def __init__(
        self, folder: Path, job: str = "orders", queries: Sequence[str] = ("q", "r"), started: datetime | None = None,
        reads: Mapping[str, tuple[tuple[str, str], ...]] = {},
    ) -> None:  # fmt: skip
        self.path = str(folder)
        self.folder = folder
        self.ledger = Ledger(self.path)
        self.incarnation: Incarnation = start_incarnation(self.ledger, job, now=started)
        self.writer = LedgerWriter(self.ledger, self.incarnation)
        for query in queries:
            self.define(query, reads.get(query, ()))

    def define(self, query: str, reads: tuple[tuple[str, str], ...] = ()) -> None:
        """Write down what a query is made of, and what it reads of the configuration."""
        source = OperatorDefinition(f"{query}-in", Role.SOURCE, "files")
        sink = OperatorDefinition(f"{query}-out", Role.SINK, "delta_2pc")
        made_of = QueryDefinition((source, sink), reads=reads)
        row = DefinitionRow(query=query, lineage=1, incarnation=1, at=now(), definition=made_of.to_json())
        self.writer.append(row)

    def step(
        self, event: Event, status: str, query: str = "", epoch: int | None = None, *, ms: float = 10,
        reason: str = "", result: Any = None,
    ) -> None:  # fmt: skip
        """What a driver writes of an event, so many ms after its acceptance."""
        at = datetime.fromtimestamp(event.at_ms / 1000, timezone.utc) + timedelta(milliseconds=ms)
        row = ControlTransitionRow(
            event_id=event.event_id, sequence=event.sequence, status=status, query=query, epoch=epoch, lineage=1,
            incarnation=1, at=at, reason=reason, result=result,
        )  # fmt: skip
        self.writer.append(row)

    def epoch(self, query: str, number: int, configuration: Configuration | None) -> Mapping[str, Any]:
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
        row = EpochRow(
            query=query, query_id="0", epoch=number, lineage=1, incarnation=1, input_rows=7, committed_at=now(),
            duration_ms=12, offsets=list(offsets),
        )  # fmt: skip
        self.writer.append(row)


def now() -> datetime:
    return datetime.now(timezone.utc)


class Sent:
    """A job's control log, from outside."""

    def __init__(self, state: Path) -> None:
        self._log = ControlLog(Ledger(str(state)))

    def __call__(self, kind: str, value: Any = None, target: str = "job") -> int:
        done = self._log.accept([Request(kind, target, value)])[0]
        assert isinstance(done, Accepted), done
        return done.event.sequence

    def refused(self, kind: str, value: Any = None, target: str = "job") -> ControlRefused:
        done = self._log.accept([Request(kind, target, value)])[0]
        assert isinstance(done, ControlRefused), done
        return done


def obeyed(checkpoint: Path, sequence: int) -> None:
    """Wait until an epoch of a query has been planned that obeys an event."""
    log = SparkLog(str(checkpoint))

    def there() -> bool:
        newest = log.newest_offsets()
        offsets = None if newest is None else log.offsets(newest)
        return offsets is not None and any(one.control >= sequence for one in source_offsets(offsets).values())

    until(there, f"event {sequence} is obeyed")
