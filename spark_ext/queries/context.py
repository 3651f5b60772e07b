"""What the parts of a running job share."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_ext.failures.classifier import Classifier
from spark_ext.model.identity import Identity

if TYPE_CHECKING:
    from spark_ext.control.job_events import Accepts
    from spark_ext.exchange.consumers import Consumer
    from spark_ext.ledger import Incarnation
    from spark_ext.ledger.write_behind import WriteBehind
    from spark_ext.model.restarts import UntilNow
    from spark_ext.settings import JobSettings


@dataclass(frozen=True)
class WatchContext:
    """What the parts share that watch queries, of a job or of others, and record what they see."""

    job: str
    job_id: str  # drawn at the first start; tells two jobs of one name apart
    state: str  # absolute path or URI of the state directory
    settings: JobSettings
    incarnation: Incarnation
    write_behind: WriteBehind  # rows on their way to the ledger
    wake: threading.Event  # set to make the deciding thread poll at once
    classifier: Classifier = field(default_factory=Classifier, kw_only=True)  # judges failures

    def operator(self, query: str) -> str:
        """Job and query, for messages."""
        return f"job '{self.job}', query '{query}'"

    def checkpoint_of(self, query: str) -> str:
        """Spark's checkpoint directory of a query."""
        return checkpoint_of(self.state, query)


@dataclass(frozen=True)
class JobContext(WatchContext):
    """The identity of a started job, its settings, and where its parts write and wait."""

    registry: Path  # the session registry's folder
    control: Accepts  # accepts the control events that the job itself requests
    until: UntilNow | None = None  # of a run that ends with what is there; None: it ends when its input does
    early: bool = False  # whether queries that have read what is there show their open windows
    hold: bool = False  # whether the start only completes epochs that were interrupted, and plans no others
    first_checkpoint: int = 1  # of this start: no offset that was planned before it carries a barrier as great
    drain: int = 0  # the newest lineage for which a drain was in force before this start; 0: none
    begun: Mapping[str, int] = field(default_factory=dict)  # by query, the earlier start in which it began
    passed: int = 0  # the newest control event at this start: no query is restarted for it, or an earlier one
    consumers: Mapping[str, tuple[Consumer, ...]] = field(default_factory=dict)  # an exchange's producer waits for them
    syncs: bool = False  # whether epochs are made durable, on file systems too: the job has inboxes
    changed: dict[str, Any] = field(default_factory=dict)  # settings of checkpoints by events; the coordinator's

    @property
    def holds_gates(self) -> bool:
        """Whether queries behind others are left to the next run: the drain in force would cut them short."""
        return self.until is not None and self.drain > 0

    @property
    def checkpointing(self) -> JobSettings:
        """The settings of checkpoints that are in force."""
        return self.settings.model_copy(update=self.changed) if self.changed else self.settings

    def identity(self, query: str, checkpoint: str, lineage: int) -> Identity:
        """The identity under which a query's sink writes in this start of the job."""
        return Identity(
            job=self.job,
            job_id=self.job_id,
            query=query,
            state=self.state,
            checkpoint=checkpoint,
            lineage=lineage,
            incarnation=self.incarnation.number,
            start=self.incarnation.start,
            samples=self.settings.monitor_interval > 0,
            parts=self.settings.epoch_parts,
            syncs=self.syncs,
        )


def checkpoint_of(state: str, query: str) -> str:
    """Spark's checkpoint directory of a query."""
    return f"{state.rstrip('/')}/queries/{query}/checkpoint"
