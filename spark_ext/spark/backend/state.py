"""State stores of a classic session: what RocksDB keeps in their folders, and those that are loaded in the driver.

A version of a store is a changelog, `<version>_<id>.changelog`, and now and then also a snapshot, `<version>_<id>.zip`,
which refers to files in `SSTs` and `logs` that it shares with others. A changelog begins with its lineage: the versions
back to the last snapshot that its writer knew.

Spark keeps the stores of a query that has ended loaded until its next round of maintenance, each minute, or the first
task of another query. A round uploads the newest snapshot of a store to the folder that the store had, and only then
looks whether the query still runs: state of nobody in what was put there meanwhile, beside which Spark refuses to begin
a query. So a round is held before the folder changes hands. What only executors' own maintenance reaches stays; a query
that meets it is restarted (`state.late` in `failures.yaml`).

`tests/spark/test_state_files.py` and `tests/jobs/test_late_state.py` pin what is relied on.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from spark_ext.masking import logger
from spark_ext.spark.backend.missing import all_by_name
from spark_ext.spark.capabilities import capabilities

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logger("spark_ext.job")

_STATE: Final = "org.apache.spark.sql.execution.streaming.state"

_GONE: Final = ("java.io.FileNotFoundException", "java.nio.file.NoSuchFileException")
WITHIN_S: Final = 30.0  # for uploads of state, s
_LOOK_EVERY_S: Final = 0.02

_POOLS: Final = ("maintenanceThreadPool", "highPriorityThreadPool", "lowPriorityThreadPool")
"""The first until 4.2; 4.3 removes old versions in a pool of its own."""


@dataclass(frozen=True)
class StateVersion:
    """One version of the content of a state store; a replayed epoch writes another version of the same number."""

    number: int  # epoch N writes version N+1
    unique_id: str

    @property
    def changelog(self) -> str:
        """The file with what has changed since the version before."""
        return f"{self.number}_{self.unique_id}.changelog"

    @property
    def snapshot(self) -> str:
        """The file with which a snapshot of this version begins; written later than the changelog, or never."""
        return f"{self.number}_{self.unique_id}.zip"


class StateFiles(Protocol):
    """What RocksDB state stores keep in their folders, each a path or URI."""

    def lineage(self, folder: str, version: StateVersion) -> tuple[StateVersion, ...]:
        """The versions before this one that its changelog needs, oldest first; empty for the first version."""

    def referred(self, folder: str, version: StateVersion) -> tuple[str, ...]:
        """The files to which a snapshot refers, relative to the store's folder, sorted."""


@all_by_name
class JvmStateFiles:
    """See `StateFiles`: read by Spark's own classes."""

    def __init__(self, spark: SparkSession, codec: str) -> None:
        self._jvm: Any = spark.sparkContext._jvm
        self._hadoop = spark._jsparkSession.sessionState().newHadoopConf()
        self._package = getattr(self._jvm, _STATE)
        self._codec = codec
        self._with_settings = capabilities(spark.version).changelog_settings

    def lineage(self, folder: str, version: StateVersion) -> tuple[StateVersion, ...]:
        """See `StateFiles`."""
        option = self._jvm.scala.Option
        settings = (self._package.StateStoreConf.empty(), False, option.empty()) if self._with_settings else ()
        # It only reads, so that it needs no folder for drafts.
        manager = self._package.RocksDBFileManager(folder, None, self._hadoop, self._codec, "", *settings)
        with _vanished(f"{folder}/{version.changelog}"):
            reader = manager.getChangelogReader(version.number, option.apply(version.unique_id))
            try:
                items = [(int(item.version()), str(item.checkpointUniqueId())) for item in reader.lineage()]
            finally:
                reader.close()
        return tuple(StateVersion(*item) for item in items)

    def referred(self, folder: str, version: StateVersion) -> tuple[str, ...]:
        """See `StateFiles`."""
        kinds = self._package.RocksDBImmutableFile
        path = self._jvm.org.apache.hadoop.fs.Path(f"{folder}/{version.snapshot}")
        with tempfile.TemporaryDirectory(prefix="spark-ext-state-") as drafts, _vanished(str(path)):
            self._jvm.org.apache.spark.util.Utils.unzipFilesFromFile(
                path.getFileSystem(self._hadoop), path, self._jvm.java.io.File(drafts)
            )
            metadata = self._package.RocksDBCheckpointMetadata.readFromFile(self._jvm.java.io.File(drafts, "metadata"))
        files = metadata.immutableFiles()
        names = [str(files.apply(position).dfsFileName()) for position in range(files.size())]
        subfolders = str(kinds.SST_FILES_DFS_SUBDIR()), str(kinds.LOG_FILES_DFS_SUBDIR())
        return tuple(sorted(f"{subfolders[not kinds.isSstFile(name)]}/{name}" for name in names))


@contextlib.contextmanager
def _vanished(file: str) -> Iterator[None]:
    """Raise Python's own error for a file that is gone, which Spark and Hadoop say in several ways."""
    from py4j.protocol import Py4JJavaError

    try:
        yield
    except Py4JJavaError as failure:
        cause = failure.java_exception
        while cause is not None:
            if cause.getClass().getName() in _GONE:
                raise FileNotFoundError(f"{file} no longer exists") from failure
            cause = cause.getCause()
        raise


def settle(spark: SparkSession, folder: str) -> bool:
    """See `Backend.settle_state`."""
    try:
        stores = StateStores(spark)
        by = time.monotonic() + WITHIN_S
        while True:
            left, busy = stores.of_ended(folder), stores.busy
            if not left and not busy:
                return True
            if time.monotonic() >= by:
                problem = f"maintenance of state has not ended within {WITHIN_S:g} s"
                break
            if not busy:
                stores.unload(left)
            time.sleep(_LOOK_EVERY_S)
    except Exception as failure:  # Spark is not made as this expects, or is ending
        problem = str(failure)
    log.warning("Spark may still write state of queries that have ended below %s: %s", folder, problem)
    return False


class StateStores:
    """The object of the JVM that has the loaded stores."""

    def __init__(self, spark: SparkSession) -> None:
        self._jvm: Any = spark.sparkContext._jvm
        self._spark = spark
        self._store = getattr(getattr(getattr(self._jvm, _STATE), "StateStore$"), "MODULE$")

    def loaded(self, folder: str) -> list[Any]:
        """The ids of the loaded stores below a folder, a path or URI."""
        # One call, as the map changes meanwhile.
        every = field(self._store, "loadedProviders").keySet().toVector()
        found = [every.apply(position) for position in range(every.size())]
        # No longer loaded, but to be uploaded in the next round; 4.0 has no such stores.
        if has_field(self._store, "unloadedProvidersToClose"):
            found += [pair._1() for pair in field(self._store, "unloadedProvidersToClose").toArray()]
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
        for name in filter(partial(has_field, self._store), _POOLS):
            pool = field(self._store, name)
            threads = None if pool is None else field(pool, "threadPool")
            if threads is not None and threads.getTaskCount() != threads.getCompletedTaskCount():
                return True
        return False

    def unload(self, stores: Iterable[Any]) -> None:
        """Begin to unload stores of queries that have ended, by a round of maintenance."""
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


def accessible(kind: Any, name: str) -> Any:
    """A private field of a class of the JVM."""
    declared = kind.getDeclaredField(name)
    declared.setAccessible(True)
    return declared


def has_field(target: Any, name: str) -> bool:
    """Whether the class of an object of the JVM declares a field."""
    return any(one.getName() == name for one in target.getClass().getDeclaredFields())


def field(target: Any, name: str) -> Any:
    """The value of a private field of an object of the JVM."""
    return accessible(target.getClass(), name).get(target)
