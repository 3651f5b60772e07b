"""The part of a job's face that takes dumps of its processes on request."""

from __future__ import annotations

from spark_ext.errors import StateError
from spark_ext.jobs.reportable import Reportable
from spark_ext.observing.dumps import PATIENCE


class Dumpable(Reportable):
    """What a job offers to whoever wants to look into its processes; base of `Job`."""

    def dump(self, why: str = "on request", *, heap: bool = False, timeout: float = PATIENCE) -> str:
        """Write the stacks of all processes of the running job into its state directory, whatever its setting `dumps`.

        The text has the threads of the driver's Python process, of its JVM and of executors, and the Python workers of
        the queries. As many dumps are kept as `dumps_kept` and `dumps_size` say. Safe for several threads.

        Args:
            why: the first line of the text.
            heap: whether the heap of the driver's JVM is written as well. The JVM stands still meanwhile, and no secret
                in the heap is masked.
            timeout: how long to wait, s.

        Returns:
            The path or URI of the dump's folder: `dumps/...` in the state directory.

        Raises:
            StateError: the job does not run.
            ConfigurationError: a heap cannot be written into a state directory on an object store.
            StorageError: it could not be written, or there is no room for it.
            TimeoutError: it is not complete yet.
        """
        coordinator = self._coordinator
        if coordinator is None or coordinator.done.is_set() or coordinator.dumps is None:
            raise StateError(
                "the job does not run, so it has no processes",
                operator=f"job '{self.name}', dump",
                kept="nothing was written",
                do="ask for it between start() and the end of the job",
            )
        return coordinator.dumps.take(why, heap=heap, timeout=timeout)
