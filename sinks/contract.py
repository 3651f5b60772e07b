"""The one contract for sinks. This file is all that the author of a new sink has to read.

A sink takes each epoch in two phases. In the first, tasks on executors `write` their rows somewhere where no reader
sees them, and return a small record of what they prepared. In the second, one process on the driver `commit`s all that
was prepared, together with the epoch's identity, in one atomic step of the target. Whoever tries to commit an epoch
again is told that it is done already.

The base class does the rest: it waits for all tasks' records, finds the job's incarnation and lineage, retries with
back-off, refuses another job's uid, and tells the sink about the end of input.

What is guaranteed to you:

- `write` runs once per partition and attempt, on executors; `commit` runs on the driver, one call at a time per query,
  only after every partition has been written.
- Before the first epoch of an incarnation, `claim` is called, and completes, before anything is written.

What is **not** guaranteed:

- A task may run twice; only one attempt's record reaches `commit`. What the others left is yours to clean in `claim`.
- `commit` may be called again for an epoch that is already committed: after a crash between your commit and Spark's,
  and after a `commit` that raised although it took effect. It must find the epoch's identity in the target and return
  `ALREADY_COMMITTED`. The rows of a repeated epoch may have been prepared anew.
- Nothing is undone: Spark's `abort` may follow a commit that took effect, so the base ignores it.
- An older incarnation may still be running when a newer one starts, and may try to commit at any later moment. After
  `claim(newer)` the target itself has to refuse it (`FencedError`): look-then-commit is not enough.
- `is_finalized` and the life-cycle hooks come at least once: after a crash they may come again.
- The constructor runs in many processes: it has no side effects.

The shape owes to Flink's two-phase sinks (FLIP-143, FLIP-372) and to Delta's idempotent writes (`txnAppId`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter
from pyspark.sql.types import StructType

from spark_ext.model.commits import Claim as Claim
from spark_ext.model.commits import CommitOutcome as CommitOutcome
from spark_ext.model.commits import Epoch as Epoch
from spark_ext.model.commits import Task as Task
from spark_ext.options import Milliseconds, Options

if TYPE_CHECKING:
    import pyarrow as pa


class SinkOptions(Options):
    """Options that every sink has. Declare yours as fields of a subclass."""

    commit_attempts: int = Field(default=8, gt=0)
    """How often the commit of an epoch is tried before the query fails; a start tries its claim as often."""

    commit_backoff: Milliseconds = 50
    """Wait before the second attempt, ms; doubles with each further one, with jitter, up to 10 s."""

    commit_patience: Milliseconds = 30_000
    """From the second attempt on: how long after the first failure no further attempt is made, ms. So a target that
    does not even answer is an incident of the job before long."""


class TwoPhaseCommitSink(DataSource):
    """Base of all sinks: subclass it, and register the class with `spark_ext.register(spark, YourSink)`.

    Delivery: exactly once under a job; outside a job each epoch is still committed once, but nothing fences an older
    driver off.
    """

    options_type: ClassVar[type[SinkOptions]] = SinkOptions
    """Your options class."""

    options: SinkOptions  # type: ignore[assignment]
    """The parsed options; annotate it with your class. (Spark's base class has the raw ones under this name.)"""

    given: Mapping[str, str]
    """The options as they were given, secrets among them: never to be shown."""

    requires_finalization: ClassVar[bool] = False
    """Whether the final checkpoint has to wait for `is_finalized`."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        self.given = dict(options)
        self.options = self.options_type.parse(self.name(), options)

    # -- to be written ------------------------------------------------------------------------------------------------

    @classmethod
    @abstractmethod
    def name(cls) -> str:
        """The format name: `writeStream.format(name)`."""

    @abstractmethod
    def write(self, schema: StructType, batches: Iterator[pa.RecordBatch], task: Task) -> Any:
        """Phase one, on an executor: store the rows where no reader sees them.

        Returns:
            A small picklable record of what was prepared; None when there were no rows.
        """

    @abstractmethod
    def commit(self, schema: StructType, epoch: Epoch, prepared: Sequence[Any]) -> CommitOutcome:
        """Phase two, on the driver: make everything that was prepared visible, atomically and once.

        Not called for an epoch without rows, except for a final one.

        Args:
            schema: the rows' schema.
            epoch: whose commit it is.
            prepared: what `write` returned, without the Nones; from every partition.

        Raises:
            FencedError: a newer incarnation has claimed the target; the message says which (`incarnation 2`).
            TransientError or OSError: tried again by the base, with back-off.
        """

    @abstractmethod
    def claim(self, claim: Claim) -> None:
        """Take the target for an incarnation; called in the driver before the query starts, and may come again.

        Older incarnations are fenced off in the target itself; only then is finished or discarded what they left
        prepared.

        Raises:
            FencedError: a newer incarnation has claimed it; the message says which.
            ConfigurationError: the target holds epochs that another job wrote under this uid; the message names it.
            TransientError or OSError: tried again like a commit, then the start is refused with it.
        """

    # -- may be written -----------------------------------------------------------------------------------------------

    def validate(self, schema: StructType) -> None:
        """Refuse what can be refused before the query starts: a missing target, a type that does not fit."""

    def is_finalized(self, epoch: Epoch) -> bool:
        """Whether nothing is left to be done for this and all earlier epochs; asked if `requires_finalization`.

        While it says False the query is given further, empty epochs, each committed with `epoch.final` set.
        """
        return True

    def open(self) -> None:
        """The job is about to start this sink's query. Not called for a query that has finished."""

    def end_of_input(self) -> None:
        """All input of the query, and all its state, has been committed. Not called on stop, cancel or failure."""

    def on_final_checkpoint(self, epoch: Epoch) -> None:
        """The final checkpoint is recorded: no further epoch will come."""

    def close(self) -> None:
        """The query has stopped for good."""

    # -- done by the base ---------------------------------------------------------------------------------------------

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """What Spark calls; not to be overridden."""
        from spark_ext.sinks.runtime.writer import EpochWriter

        return EpochWriter(self, schema)
