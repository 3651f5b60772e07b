"""The state stores that Spark keeps loaded after their query has ended, until the next round of its maintenance.

A round comes each minute (`spark.sql.streaming.stateStore.maintenanceInterval`), or with the first task of any other
query. It uploads the newest snapshot of a store, to the folder that the store had, and only then looks whether the
query still runs. What has been put into that folder meanwhile, such as the checkpoint of a savepoint, gets state of
nobody, and Spark refuses to begin a query beside it. So the round is held before the folder changes hands.

Executors have stores of their own, which only their own maintenance reaches; a query that meets what they write is
restarted (`state.late` in `failures.yaml`). One of the modules beside `jvm` that use py4j;
`tests/jobs/test_late_state.py` pins what it relies on.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from spark_ext.masking import logger

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logger("spark_ext.job")

WITHIN_S: Final = 30.0
"""For an upload that is under way, s."""

_LOOK_EVERY_S: Final = 0.02

_STATE: Final = "org.apache.spark.sql.execution.streaming.state"


def settle(spark: SparkSession, folder: str, within: float = WITHIN_S) -> bool:
    """Wait until the stores below a folder whose queries have ended are uploaded and closed.

    Args:
        spark: any session of the application.
        folder: path or URI of a checkpoint directory, or of one that contains them.
        within: s.

    Returns:
        Whether this JVM has none any more. Otherwise a warning says why.
    """
    try:
        stores = StateStores(spark)
        by = time.monotonic() + within
        while True:
            left, busy = stores.of_ended(folder), stores.busy
            if not left and not busy:
                return True
            if time.monotonic() >= by:
                problem = f"maintenance of state has not ended within {within:g} s"
                break
            if not busy:
                stores.unload(left)
            time.sleep(_LOOK_EVERY_S)
    except Exception as failure:  # Spark is not made as this expects, or is ending
        problem = str(failure)
    log.warning("Spark may still write state of queries that have ended below %s: %s", folder, problem)
    return False


class StateStores:
    """The object of the JVM that has the loaded stores.

    Args:
        spark: any session of the application.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._jvm: Any = spark.sparkContext._jvm
        self._spark = spark
        self._store = getattr(getattr(getattr(self._jvm, _STATE), "StateStore$"), "MODULE$")

    def loaded(self, folder: str) -> list[Any]:
        """The ids of the loaded stores below a folder, a path or URI."""
        # One call, as the map changes meanwhile.
        every = _field(self._store, "loadedProviders").keySet().toVector()
        found = [every.apply(position) for position in range(every.size())]
        # No longer loaded, but to be uploaded in the next round.
        found += [pair._1() for pair in _field(self._store, "unloadedProvidersToClose").toArray()]
        wanted = self._path(folder)
        return [one for one in found if self._path(one.storeId().checkpointRootLocation()).startswith(wanted)]

    def of_ended(self, folder: str) -> list[Any]:
        """Those of them whose queries have ended, by Spark's registry of queries."""
        found = self.loaded(folder)
        queries = self._spark._jsparkSession.sharedState().activeStreamingQueries().values() if found else ()
        running = {str(query.runId()) for query in queries}
        return [one for one in found if str(one.queryRunId()) not in running]

    def _path(self, location: str) -> str:
        return f"{self._jvm.org.apache.hadoop.fs.Path(location).toUri().getPath()}/"

    @property
    def busy(self) -> bool:
        """Whether maintenance of any store is under way, or waits for a thread."""
        pool = _field(self._store, "maintenanceThreadPool")
        threads = None if pool is None else _field(pool, "threadPool")
        return threads is not None and bool(threads.getTaskCount() != threads.getCompletedTaskCount())

    def unload(self, stores: Iterable[Any]) -> None:
        """Begin to unload stores of queries that have ended, by a round of maintenance.

        Args:
            stores: their ids.
        """
        coordinator = self._spark._jsparkSession.streams().stateStoreCoordinator()
        for run in {str(one.queryRunId()): one.queryRunId() for one in stores}.values():
            # Once more: a task that ended after its query may have reported its store.
            coordinator.deactivateInstances(run)
        self.maintain()

    def maintain(self) -> None:
        """Begin a round of maintenance."""
        begin = self._store.getClass().getDeclaredMethod("doMaintenance", self._none("Class"))
        begin.setAccessible(True)
        begin.invoke(self._store, self._none("Object"))

    def _none(self, kind: str) -> Any:
        gateway: Any = self._spark.sparkContext._gateway
        return gateway.new_array(getattr(self._jvm.java.lang, kind), 0)


def _field(target: Any, name: str) -> Any:
    declared = target.getClass().getDeclaredField(name)
    declared.setAccessible(True)
    return declared.get(target)
