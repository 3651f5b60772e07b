"""What a RocksDB state store keeps in its folder, read through Spark's own classes.

A store writes each version as a changelog, `<version>_<id>.changelog`, and now and then also as a snapshot,
`<version>_<id>.zip`. A changelog begins with its lineage: the versions before it, back to the last snapshot that its
writer knew. A snapshot refers to files in `SSTs` and `logs` that it shares with other snapshots. The second module
beside `jvm` that uses py4j; `tests/spark/test_state_files.py` pins what it relies on.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_STATE: Final = "org.apache.spark.sql.execution.streaming.state"

_GONE: Final = ("java.io.FileNotFoundException", "java.nio.file.NoSuchFileException")


@dataclass(frozen=True)
class StateVersion:
    """One version of the content of a state store; a replayed epoch writes another version of the same number."""

    number: int
    """Epoch N writes version N+1."""
    unique_id: str

    @property
    def changelog(self) -> str:
        """The file with what has changed since the version before."""
        return f"{self.number}_{self.unique_id}.changelog"

    @property
    def snapshot(self) -> str:
        """The file with which a snapshot of this version begins; written later than the changelog, or never."""
        return f"{self.number}_{self.unique_id}.zip"


class StateFiles:
    """Reads files of state stores.

    Args:
        spark: the session, for its access to the file system.
        codec: how the stores' changelogs are compressed: `spark.sql.streaming.stateStore.compression.codec`.
    """

    def __init__(self, spark: SparkSession, codec: str) -> None:
        self._jvm: Any = spark.sparkContext._jvm
        self._hadoop = spark._jsparkSession.sessionState().newHadoopConf()
        self._package = getattr(self._jvm, _STATE)
        self._codec = codec

    def lineage(self, folder: str, version: StateVersion) -> tuple[StateVersion, ...]:
        """The versions before this one that its changelog needs, oldest first; empty for the first version.

        Args:
            folder: the store's folder, a path or URI.
            version: one that has a changelog.

        Raises:
            FileNotFoundError: it has none any more.
        """
        option = self._jvm.scala.Option
        # It only reads, so that it needs no folder for drafts.
        manager = self._package.RocksDBFileManager(
            folder, None, self._hadoop, self._codec, "", self._package.StateStoreConf.empty(), False, option.empty()
        )
        with _vanished(f"{folder}/{version.changelog}"):
            reader = manager.getChangelogReader(version.number, option.apply(version.unique_id))
            try:
                items = [(int(item.version()), str(item.checkpointUniqueId())) for item in reader.lineage()]
            finally:
                reader.close()
        return tuple(StateVersion(*item) for item in items)

    def referred(self, folder: str, version: StateVersion) -> tuple[str, ...]:
        """The files to which a snapshot refers, relative to the store's folder, sorted.

        Args:
            folder: the store's folder, a path or URI.
            version: one that has a snapshot.

        Raises:
            FileNotFoundError: it has none any more.
        """
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
                raise FileNotFoundError(f"{file} does not exist any more") from failure
            cause = cause.getCause()
        raise


def repartition(spark: SparkSession, checkpoint: str, partitions: int) -> None:
    """Let Spark distribute the state of a checkpoint directory anew; see `state_partitions.repartition`."""
    # With the first access the driver begins to coordinate state stores, without which Spark cannot load any.
    spark.streams  # noqa: B018
    spark._streamingCheckpointManager.repartition(checkpoint, partitions, enforce_exactly_once_sink=True)


def message(problem: Exception) -> str:
    """What a failure of Spark says, without its stack traces."""
    from py4j.protocol import Py4JJavaError

    if not isinstance(problem, Py4JJavaError):
        return str(problem).partition("\n")[0]
    cause = problem.java_exception
    return str(cause.getMessage() or cause.getClass().getName()).partition("\n")[0]
