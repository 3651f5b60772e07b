"""The part of a job's face that deals with its past: checkpoints, savepoints, restore and rescale."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from spark_ext.errors import RESET, JobFailedError, SparkExtError
from spark_ext.jobs.buildable import Buildable
from spark_ext.jobs.checkpointing.checkpoint_request import wait_for
from spark_ext.jobs.checkpointing.retained import retained
from spark_ext.jobs.checkpointing.savepoint_requests import check_folder
from spark_ext.jobs.restoring.as_of import AsOf, as_of
from spark_ext.jobs.restoring.damage import is_damaged, remedy
from spark_ext.jobs.restoring.offline import savepoint_of_stopped
from spark_ext.jobs.restoring.rescale import rescale
from spark_ext.jobs.restoring.restore import Restore
from spark_ext.jobs.starting.changing import forget, reset
from spark_ext.masking import logger

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from typing_extensions import Self

    from spark_ext.jobs.coordinator import Coordinator
    from spark_ext.ledger import Ledger
    from spark_ext.settings import JobSettings

log = logger("spark_ext.job")


class Restorable(Buildable):
    """What a job offers besides being run; base of `Job`."""

    state_directory: str
    settings: JobSettings
    _spark: SparkSession
    _ledger: Ledger

    @abstractmethod
    def _coordinator_or_raise(self, *, starting: bool = False) -> Coordinator: ...

    @abstractmethod
    def _refuse_running(self, what: str, do: str) -> None: ...

    def checkpoint(self, timeout: float | None = None) -> int:
        """Take an aligned checkpoint: a barrier passes all queries, and nothing is in flight between them there.

        It waits for what the exchanges hold at this moment. The job continues meanwhile.

        Args:
            timeout: seconds to wait; None: as long as it takes, at most the setting `checkpoint_timeout`.

        Returns:
            Its number; its row in the ledger's `checkpoints` says how far each query had come, and `as_of` reads the
            outputs as they were.

        Raises:
            CheckpointError: it was refused, because a query does not run, or aborted.
            TimeoutError: it is not complete yet, and stays under way.
            StateError: the job has not been started.
        """
        return wait_for(self._coordinator_or_raise(starting=True).checkpoint(), timeout)

    def savepoint(self, path: str | Path, *, aligned: bool = False, timeout: float | None = None) -> int:
        """Take a savepoint: a folder from which the job, or another one, continues exactly here.

        A job that runs continues to do so; one that has ended, in whatever way, is saved where it stands. Files are
        linked, not copied, where the folder is on the file system of the state directory.

        Args:
            path: of the folder; empty or missing. A local path or a URI.
            aligned: let a barrier pass all queries first, so that nothing is in flight between them. Otherwise the
                savepoint is taken at once, whatever the exchanges hold, and contains the rows in flight.
            timeout: seconds to wait; None: as long as it takes.

        Returns:
            The number of the checkpoint that it is.

        Raises:
            CheckpointError: there is no consistent cut now, or Spark has deleted a file of it meanwhile.
            ConfigurationError: the folder is not empty, or in the state directory.
            StateError: the job was never started, or has a state that cannot be restored from.
            TimeoutError: it is not complete yet, and stays under way.
        """
        folder = check_folder(str(path), self.name, self.state_directory)
        coordinator = self._coordinator
        if coordinator is None or coordinator.done.is_set():
            return savepoint_of_stopped(self._spark, self._parts, self._ledger, folder)
        if aligned:
            return wait_for(coordinator.checkpoint(folder), timeout)
        return wait_for(coordinator.savepoint(folder), timeout)

    def restore(
        self,
        savepoint: str | Path | int,
        *,
        accept_duplicates: Collection[str] = (),
        state_partitions: Mapping[str, int] | None = None,
    ) -> Self:
        """Continue from a savepoint: the next start begins there. Call it after all queries were added.

        In the state directory of the job that it was taken of, the restore is in place: outputs of `delta_2pc` and
        exchanges are put back to what they held then. In an empty state directory the job becomes another one, whose
        sinks write elsewhere; in one Spark session only one of the two can run.

        A restore that was interrupted is repeated with the same call; until then the job cannot be started.

        Args:
            savepoint: path or URI of its folder; or the number of a retained checkpoint.
            accept_duplicates: uids of sinks whose targets cannot be put back: what they received after the savepoint
                stays there, and is written again.
            state_partitions: by query, the number of partitions that its state is to have.

        Raises:
            StateError: the savepoint is missing, not complete, damaged or another job's; the job runs; a query of it is
                not in the job; or a target is not what it was.
            ConfigurationError: a target cannot be put back, or the job has changed in a way that it cannot continue.
        """
        self._refuse_running("restore", "stop it, then restore")
        if isinstance(savepoint, int):
            savepoint = retained(self.name, self.state_directory, savepoint)
        Restore(
            self._spark,
            self._parts,
            self._ledger,
            str(savepoint),
            accept_duplicates=(accept_duplicates,) if isinstance(accept_duplicates, str) else accept_duplicates,
            state_partitions=state_partitions,
        ).run()
        return self

    def _restore_after(self, failure: JobFailedError) -> None:
        """Restore the job from its newest retained checkpoint after it has failed, if the settings say so.

        Raises:
            JobFailedError: the failure, if its state is not damaged or the job does not restore itself; otherwise with
                the reason why it could not be restored.
        """
        who = f"job '{self.name}'"
        if self.settings.on_damage != "restore" or not is_damaged(self._coordinator_or_raise()):
            raise failure
        number, why_not = remedy(self.state_directory, self._ledger)
        if number is None:
            raise JobFailedError(
                f"{failure.what}; the job does not restore itself: {why_not}",
                operator=failure.operator,
                kept=failure.kept,
                do="restore it from an older checkpoint or a savepoint with Job.restore(); without one, discard the "
                f"query's history with {RESET}",
                cause_text=str(failure),
            ) from failure
        log.warning("%s: %s; it is restored from checkpoint %d", who, failure.what, number)
        try:
            self.restore(number)
        except SparkExtError as problem:
            raise JobFailedError(
                f"{failure.what}; the restore from checkpoint {number} failed: {problem.what}",
                operator=failure.operator,
                kept=problem.kept,
                do=problem.do,
                cause_text=f"{failure}\n\n{problem}",
            ) from problem

    def rescale(self, uid: str, partitions: int, timeout: float | None = None) -> None:
        """Give the state of a query another number of partitions; the job must not be running.

        An epoch of the query that was interrupted is completed first: the job is started for it, and reads nothing
        beyond it.

        Partitions of exchanges and channels of sources need nothing of the kind: any number of readers shares them.

        Args:
            uid: the query.
            partitions: of its state.
            timeout: seconds for an epoch that was interrupted; 0: refuse if there is one; None: as long as it takes.

        Raises:
            ConfigurationError: there is no such query.
            StateError: the job runs; or the query has no state, an epoch that was not completed in time, or an operator
                whose state Spark cannot repartition.
            SparkExtError: a start was needed and refused, or has failed.
        """
        self._refuse_running(f"query '{uid}'", "stop it, then rescale")
        rescale(self._spark, self._parts, self._ledger, self.settings, uid, partitions, timeout)

    def as_of(self, checkpoint: int) -> AsOf:
        """The outputs as they were at an aligned checkpoint: all reflect the same input rows.

        Args:
            checkpoint: its number.

        Raises:
            CheckpointError: there is no such checkpoint, or it is not aligned.
        """
        return as_of(self._spark, self.name, self._ledger, checkpoint, self._parts.specs)

    def reset(self, uid: str, reason: str = "", *, cascade: bool = False) -> None:
        """Discard a query's history: the next start reads all of its input again. Earlier output stays where it is.

        The job must not be running. The old checkpoint is kept beside the new one.

        Args:
            uid: the query.
            reason: who requested it, and why; kept in the ledger.
            cascade: reset all queries behind it as well: those that read, directly or not, the exchanges that it
                writes, and those that were built after it. What the exchanges hold is discarded.

        Raises:
            StateError: the job runs, or a checkpoint cannot be moved aside.
            ConfigurationError: the job never had such a query; or there are queries behind it, and no `cascade`.
        """
        self._refuse_running(f"query '{uid}'", "stop it, then reset")
        reset(self._parts, self._ledger, uid, reason, cascade=cascade)

    def forget(self, exchange: str, uid: str) -> None:
        """A source that read an exchange is not part of the job any more: what it has not read is released.

        The job must not be running.

        Raises:
            StateError: the job runs.
            ConfigurationError: there is no such exchange, or the source never read it, or is in a query that is built.
        """
        self._refuse_running(f"exchange '{exchange}'", "stop it, then call forget")
        forget(self._parts, self._ledger, exchange, uid)
