"""The contract for sinks. This file is all that the author of a new sink has to read.

A sink takes each epoch in two phases. In the first, tasks on executors `write` their rows somewhere where no reader
sees them, and return a small record of what they prepared. In the second, one process on the driver's machine `commit`s
all that was prepared, together with the epoch's identity, in one atomic step of the target. A commit of an epoch that
has been committed before changes nothing and says so.

    class Archive(TwoPhaseCommitSink):
        options_type = ArchiveOptions
        options: ArchiveOptions

        @classmethod
        def name(cls) -> str:
            return "archive"

        def write(self, schema, batches, task):
            return self._store(batches, f"{task.query_id}-{task.epoch}-{task.partition}-{task.attempt}")

        def commit(self, schema, epoch, prepared):
            with self._transaction() as target:
                # Raises FencedError, or StateError when the target is not the one that was claimed.
                epoch.check_target(target.mark, target.last_epoch(epoch.application), "sink 'out'")
                if epoch.is_held(target.last_epoch(epoch.application)):
                    return CommitOutcome.ALREADY_COMMITTED
                target.publish(prepared, epoch.application, epoch.number)
            return CommitOutcome.COMMITTED

        def check(self, epoch):                                  # an epoch without rows
            target = self._look()
            epoch.check_target(target.mark, target.last_epoch(epoch.application), "sink 'out'")

        def claim(self, claim):
            with self._transaction() as target:
                claim.mark.check(target.mark, "sink 'out'")
                claim.check_state(claim.known(target.last_epochs()), target.mark, "sink 'out'")
                target.fence(claim.sink, claim.job_id, claim.mark)
            self._discard_what_older_incarnations_prepared(claim)

    spark_ext.register(spark, Archive)
    frame.writeStream.format("archive").options(uid="out", path="...")

With `quarantines = True` and two more lines it also supports `on_bad_row=quarantine`:

        def write(self, schema, batches, task):
            ...
            self.bad_row(BadRow({"row": number}, "too long", text))     # instead of writing it

        def commit(self, schema, epoch, prepared):
            ...
                target.publish(prepared, epoch.application, epoch.number, self.keep_bad_rows())

        def kept_bad_rows(self, epoch):
            return self._look().mark_of(epoch.application, epoch.number)

The rest is done for you: waiting for all tasks' records, the job's incarnation and lineage, retries with back-off, one
query per uid in a session, and the notice of the end of input.

Guaranteed:

- `write` runs on executors, at least once per partition. `commit` runs on the driver's machine, one call at a time per
  query, and only after every partition has been written.
- In a job, `claim` has completed before the first row of an incarnation is written.
- `commit` is given the records of exactly one attempt per partition.

**Not** guaranteed:

- That a task runs once: only one attempt's record reaches `commit`. What other attempts left is yours to clean up in
  `claim`.
- That an epoch is committed once: `commit` may be called again for an epoch that is already committed, after a crash
  between your commit and Spark's, and after a `commit` that raised although it took effect. It must find the epoch's
  identity in the target and return `ALREADY_COMMITTED`. The rows of a repeated epoch may have been prepared again.
- That anything is undone: Spark's `abort` may follow a commit that took effect, so it is ignored.
- That an older incarnation has ended when a newer one starts: it may try to commit at any later moment. After
  `claim(newer)` the target itself has to refuse it (`FencedError`); looking first and committing afterwards is not
  enough. The same holds for two starts of one number, from two copies of the job's state: the target has to keep
  `claim.mark`, which is the number and the start's random id, and to refuse what `FenceMark.check` refuses.
- That a call comes once: `claim`, `is_finalized` and the life-cycle hooks come at least once, and may be repeated after
  a crash.
- That one instance sees all calls: tasks, commits, claims and hooks each have instances of their own, except that
  `validate` and the `claim` after it share one. What has to be remembered belongs in the target.
- That the constructor runs once, or on the driver: it runs in many processes, so it must have no side effects, and
  what it makes must be picklable or left out in `__getstate__`.

The design follows Flink's two-phase sinks (FLIP-143, FLIP-372) and Delta's idempotent writes (`txnAppId`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from spark_ext.bad_rows.options import BadRowOptions
from spark_ext.bad_rows.row import BadRow as BadRow
from spark_ext.errors import NOTHING_DONE, ConfigurationError, DataError, refused
from spark_ext.model.commits import Claim as Claim
from spark_ext.model.commits import CommitOutcome as CommitOutcome
from spark_ext.model.commits import Epoch as Epoch
from spark_ext.model.commits import FenceMark as FenceMark
from spark_ext.model.commits import Task as Task
from spark_ext.options import Milliseconds
from spark_ext.spark.session.connector import Connector

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from spark_ext.bad_rows.epoch import Takes


class SinkOptions(BadRowOptions):
    """Options that every sink has. Declare yours as fields of a subclass.

    `on_bad_row`, `bad_rows_path`, `max_bad_share` and `max_bad_rows` are among them; see `BadRowOptions`. A sink that
    does not put bad rows aside (`quarantines`) refuses `quarantine`.
    """

    commit_attempts: int = Field(default=8, gt=0)
    """How often the commit of an epoch is attempted before the query fails. Claims are retried like commits."""

    commit_backoff: Milliseconds = 50
    """Wait before the second attempt, ms; doubles with each further one, with jitter, up to 10 s."""

    commit_patience: Milliseconds = 30_000
    """No further attempt is made once this much time has passed since the first failure, ms; a second attempt is always
    made. A target that does not answer at all thus fails the query soon."""


class TwoPhaseCommitSink(Connector):
    """Base of all sinks: subclass it, and register the class with `spark_ext.register(spark, YourSink)`.

    Delivery: exactly once under a job. Outside a job each epoch is still committed once, but nothing fences an older
    driver off.

    Args:
        options: as Spark hands them over: text, under names in any case.

    Raises:
        ConfigurationError: an option is unknown, missing or has a bad value.
    """

    options_type: ClassVar[type[SinkOptions]] = SinkOptions
    """Your options class."""

    options: SinkOptions
    """The parsed options; annotate it with your class."""

    given: Mapping[str, str]
    """The options as they were given, secrets among them: never show or store them."""

    requires_finalization: ClassVar[bool] = False
    """Whether the final checkpoint has to wait for `is_finalized`."""

    records_barriers: ClassVar[bool] = False
    """Whether `commit` is also called for an epoch without rows that carries the barrier of an aligned checkpoint
    (`Epoch.barrier`), because the target records it."""

    passes_watermarks: ClassVar[bool] = False
    """Whether `commit` is also called for an epoch without rows in which the query's watermark is later than in the one
    before (`Epoch.watermark`), because the target passes it on with the rows."""

    rolls_back: ClassVar[bool] = False
    """Whether `roll_back` can take later epochs away, so that a savepoint can be restored in place."""

    quarantines: ClassVar[bool] = False
    """Whether it puts bad rows aside if `on_bad_row=quarantine` says so. Then `write`, or `commit`, gives them to
    `bad_row`; `commit` records what `keep_bad_rows` returns in the step that makes the epoch visible; and
    `kept_bad_rows` reads it there again."""

    _bad_rows: Takes | None = None
    """Set while a task writes, or an epoch is committed, whose bad rows are collected."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.given = dict(options)
        self.options = self.options_type.parse(self.name(), options)
        if self.options.on_bad_row == "quarantine" and not self.quarantines:
            raise refused(
                "on_bad_row=quarantine: a sink of this kind cannot put bad rows aside",
                f"sink '{self.options.uid}' ({self.name()})",
                "remove the option, and filter such rows in the query",
                kept=NOTHING_DONE,
            )

    # -- required -----------------------------------------------------------------------------------------------------

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
        """Phase two, on the driver's machine: make everything that was prepared visible, atomically and once.

        Not called for an epoch without rows, except for a final one, and for one whose rows are all bad. Then nothing
        is prepared, and the epoch and its mark are recorded. See `check`.

        Args:
            schema: the rows' schema.
            epoch: the epoch's identity, and the incarnation that commits it. `epoch.check_target` compares it with what
                the target holds; call it inside the atomic step.
            prepared: what `write` returned for each partition, without the Nones, in no particular order.

        Raises:
            FencedError: a newer incarnation has claimed the target; the message says which (`incarnation 2`).
            StateError: the target is missing, or is not the one that was claimed: it must not be created in silence.
            TransientError or OSError: attempted again, with back-off, as the sink's options say.
        """

    @abstractmethod
    def claim(self, claim: Claim) -> None:
        """Take the target for an incarnation; called in the driver before an epoch is planned, and may be repeated.

        That is before the query starts; or, in a run that ends with what is there, when there is something to write.

        First fence older incarnations off, in the target itself; only then finish or discard what they left prepared.
        Before that call `claim.check_state` with the epochs that the target holds: a state that was put back from a
        backup must not take later epochs of the target for its own.

        Raises:
            FencedError: a newer incarnation has claimed it; the message says which.
            StateError: the target is ahead of the job's state, or is not the one that was written to.
            ConfigurationError: the target holds epochs that another job wrote under this uid; the message names it.
            TransientError or OSError: attempted again like a commit; after the last attempt the start is refused.
        """

    # -- for you to call ----------------------------------------------------------------------------------------------

    @property
    def collects_bad_rows(self) -> bool:
        """Whether `bad_row` returns, so that it is worth looking for the other bad rows of a batch."""
        return self._bad_rows is not None

    def bad_row(self, row: BadRow, error: DataError | None = None) -> None:
        """In `write` or `commit`: a row does not fit the target, and is left out of what is written.

        With `on_bad_row=quarantine` the row is collected. If the epoch is committed, it comes into the table. In
        `commit` the rows that an attempt has found are forgotten when the next one begins.

        Args:
            row: the row; `text_of` of `spark_ext.bad_rows.sift` makes JSON of a batch of one row.
            error: what is raised with `on_bad_row=fail`; None: an error with the position and the reason.

        Raises:
            DataError: with `on_bad_row=fail`; or there are more bad rows than `max_bad_rows` allows.
        """
        if self._bad_rows is not None:
            self._bad_rows.add(row)
            return
        raise error or DataError(
            f"a row is bad: {row.reason}",
            operator=f"sink '{self.options.uid}', {row.position!r}",
            kept="everything up to the previous epoch; no row of this one was committed",
            do="correct the row in the query or the target's checks, or write with on_bad_row=quarantine",
        )

    def keep_bad_rows(self) -> int | None:
        """In `commit`, once all bad rows of the epoch are known: store them, before the epoch becomes visible.

        Returns:
            The epoch's mark, from 1 below 2^63: record it with the epoch, in the same atomic step. None: no row is bad,
            and the epoch has no mark.

        Raises:
            DataError: there are more bad rows than `max_bad_rows` allows.
            StorageError: they cannot be stored; nothing may be committed.
        """
        return None if self._bad_rows is None else self._bad_rows.keep()

    def adopt_bad_rows(self, mark: int | None) -> None:
        """In `commit`, before `keep_bad_rows`: an earlier attempt at the epoch has decided which rows are written.

        For a sink that decides first, and makes the rows visible later, as one with an outbox does: this attempt writes
        what was decided, and its own tasks' rows, good and bad, do not count. Record what `keep_bad_rows` returns with
        the decision, and adopt it when you find one.

        Args:
            mark: recorded with the decision; None: it has none, as no row was bad.

        Raises:
            ConfigurationError: there are bad rows, and with `on_bad_row=fail` no place for them.
            StateError: they are gone.
            StorageError: they cannot be read.
        """
        if self._bad_rows is not None:
            self._bad_rows.adopt(mark)
        elif mark is not None:
            raise refused(
                "an earlier attempt at the epoch has decided that some of its rows are bad, and on_bad_row=fail has no "
                "place for them",
                f"sink '{self.options.uid}' ({self.name()})",
                "start with on_bad_row=quarantine until the epoch is committed",
                kept="what was decided, with its bad rows; nothing more of the epoch was written",
            )

    def collect_bad_rows(self, into: Takes | None) -> None:
        """Called by the runtime before and after a task, and an attempt to commit; not yours to call."""
        self._bad_rows = into

    # -- optional -----------------------------------------------------------------------------------------------------

    def kept_bad_rows(self, epoch: Epoch) -> int | None:
        """The mark that the target holds with an epoch; implement it in a sink that `quarantines`.

        Asked after `commit` has returned `ALREADY_COMMITTED`: another attempt has committed the epoch, and its bad rows
        are those that count. The newest epoch of the application is enough.

        Returns:
            The mark; None: the epoch has none.
        """
        raise NotImplementedError

    def check(self, epoch: Epoch) -> None:
        """Look whether this start may still write: called instead of `commit` for an epoch of a job without rows.

        Implement it in every sink that is used in jobs: without it a job that has been replaced notices nothing until
        its next rows, and Spark records its empty epochs in the meantime. One read is enough (`epoch.check_target` with
        what the target holds); nothing has to be written. It is retried like a commit.

        Raises:
            FencedError: another start has claimed the target.
            StateError: it is not the target that was claimed.
        """

    def check_claim(self, claim: Claim) -> None:
        """Look whether `claim` would be refused, for a plan of a start: called after `validate`, and writes nothing.

        Without it a plan does not know whose the target is. Call `claim.check_state` here too; parts of the claim that
        a plan does not know are None.

        Raises:
            FencedError, StateError, ConfigurationError: as `claim`.
        """

    def early_key(self) -> tuple[str, ...] | None:
        """The columns of the query by which a row replaces an earlier one; None: rows are added, or never shown early.

        With a key, `commit` is also given rows of windows that are still open (`Epoch.early`), by a run with
        `emit="early"`: in one step, fenced by `epoch.check_target`, they replace rows of their keys, unless
        `epoch.is_held`, and no epoch is recorded. They may be given again; later rows of their keys replace them.

        Raises:
            ConfigurationError: an option keeps a later row from replacing them.
        """
        return None

    def validate(self, schema: StructType) -> None:
        """Refuse what can be refused before the query starts: a missing target, a type that does not fit."""

    def on_checkpoint_completed(self, checkpoint: int) -> None:
        """An aligned checkpoint of the job is complete. At least once per checkpoint while the job runs.

        Called in the driver, on an instance of its own; what it raises is recorded, and changes nothing.
        """

    def on_checkpoint_aborted(self, checkpoint: int) -> None:
        """An aligned checkpoint of the job was given up; the next one does not depend on it. Called as above."""

    def is_finalized(self, epoch: Epoch) -> bool:
        """Whether nothing is left to be done for this and all earlier epochs; asked if `requires_finalization`.

        While it returns False the query is given further, empty epochs, each committed with `epoch.final` set.
        """
        return True

    def position(self, epoch: Epoch) -> Any:
        """Where the target is after an epoch of this sink: what a savepoint keeps for `roll_back`.

        The epoch has been committed, or had no rows; its number is -1 before the first one. Later epochs may have been
        committed since, also in newer lineages, and do not count.

        Returns:
            A value that JSON can express; None if the target does not exist yet, or the sink does not roll back.

        Raises:
            StateError: the target does not remember it any more.
        """
        return None

    def check_roll_back(self, claim: Claim, position: Any) -> None:
        """Refuse a roll back that is not possible, before anything is claimed or changed.

        Args:
            claim: the one that the restore is going to make.
            position: what `position` returned, perhaps in an older lineage.

        Raises:
            ConfigurationError: a sink of this kind cannot be rolled back; or another job owns the uid in the target.
            StateError: the target cannot be put back to the position; says why.
        """
        raise ConfigurationError(
            "a sink of this kind cannot be rolled back",
            operator=f"sink '{self.options.uid}' ({self.name()})",
            kept="the target is unchanged; nothing was started",
            do="restore the savepoint with another target, or accept that later rows are written again",
        )

    def roll_back(self, claim: Claim, position: Any) -> None:
        """Take away what this sink has committed after the position, in one atomic step that is fenced like a commit.

        Called after `claim`, and before any epoch of the claim's lineage. That is a new one, so the epochs that are
        taken away may go on counting as committed in their own. Repeated after a crash: when there is nothing to take
        away, nothing is done. The position may also be one that an earlier roll back has taken away.

        Args:
            claim: made with `restoring`, in a new lineage, and without `planned`, `previous` and `starts`.
            position: as for `check_roll_back`.

        Raises:
            FencedError: a newer incarnation has claimed the target.
            ConfigurationError, StateError: as `check_roll_back` raises them.
            TransientError or OSError: attempted again like a commit.
        """
        self.check_roll_back(claim, position)

    def open(self) -> None:
        """The job is about to start this sink's query. Not called for a query that has finished."""

    def end_of_input(self) -> None:
        """All input of the query, and all its state, has been committed. Not called on stop, cancel or failure."""

    def on_final_checkpoint(self, epoch: Epoch) -> None:
        """The final checkpoint is recorded: no further epoch will come."""

    def close(self) -> None:
        """The final checkpoint is complete and the query has stopped."""
