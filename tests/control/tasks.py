"""A process that runs a task of Spark's, without Spark: its context, and the checkpoint directory that it reads."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark import TaskContext

from spark_ext.control import current, stamps
from spark_ext.model.configuration import Configuration, Stamp
from spark_ext.model.control import Event
from spark_ext.model.offsets import SourceOffset


class Epochs:
    """The checkpoint directory of a query `q`, with the offsets of its epochs."""

    def __init__(self, folder: Path) -> None:
        self.checkpoint = folder / "checkpoint"
        (self.checkpoint / "offsets").mkdir(parents=True)
        self._number = 0
        current._last = None, None, None  # a start of Spark's has a name of its own, those of tests have not

    def add(self, *offsets: SourceOffset) -> int:
        lines = ["v1", "{}", *(json.dumps(offset.to_json()) for offset in offsets)]
        (self.checkpoint / "offsets" / str(self._number)).write_text("\n".join(lines))
        self._number += 1
        return self._number - 1

    def commit(self, epoch: int) -> None:
        (self.checkpoint / "commits").mkdir(exist_ok=True)
        (self.checkpoint / "commits" / str(epoch)).write_text("v1\n{}")

    def stamped(self, uid: str, events: list[Event], since: int = 0) -> SourceOffset:
        """The offset of a source that obeys events from now on; those up to `since` it had obeyed before."""
        broadcasts = [
            {
                "sequence": event.sequence, "event_id": event.event_id, "type": event.value["type"],
                "value": event.value.get("value"), "target": "job", "at_ms": event.at_ms,
            }
            for event in events
            if event.kind == "broadcast" and event.sequence > since
        ]  # fmt: skip
        stamp = Stamp(Configuration().after(events), since, tuple(broadcasts))
        return SourceOffset(uid, 1, control=events[-1].sequence, stamp=stamps.write(str(self.checkpoint), stamp.text()))

    @contextmanager
    def task(
        self, epoch: int, *, stage: int = 0, partition: int = 0, attempt: int = 0, start: str = "1"
    ) -> Iterator[None]:
        before = TaskContext.get()
        properties = {
            current.CHECKPOINT: str(self.checkpoint), current.QUERY: "q", current.JOB: "lab", current.START: start,
            current.EPOCH: str(epoch),
        }  # fmt: skip
        TaskContext._setTaskContext(None)  # type: ignore[arg-type]
        given = TaskContext._getOrCreate()
        given._stageId, given._partitionId, given._taskAttemptId = stage, partition, attempt
        given._attemptNumber, given._localProperties = 0, properties
        try:
            yield
        finally:
            TaskContext._setTaskContext(before)  # type: ignore[arg-type]


def setting(sequence: int, key: str, value: object) -> Event:
    return Event(sequence, f"e{sequence}", "set_config", value={"key": key, "value": value})


def note(sequence: int, type: str = "note") -> Event:
    return Event(sequence, f"e{sequence}", "broadcast", value={"type": type, "value": sequence}, at_ms=1000 * sequence)
