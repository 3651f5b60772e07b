"""Which files of a checkpoint directory one committed epoch needs: what a copy must hold to continue right after it.

They are the logs of the epoch, the descriptions of the stateful operators, and of each state store the last snapshot
and the changelogs since, to which the unique ids in `commits/N` lead. Spark never changes them in place, and removes
them some 100 epochs later. Spark's checksum of a state file belongs to it where it exists; nobody misses Hadoop's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from spark_ext.errors import StateError
from spark_ext.model.offsets import OffsetKind, kind_of
from spark_ext.spark.backend.kinds import backend_of
from spark_ext.spark.backend.state import StateFiles, StateVersion
from spark_ext.spark.logs import watermarks
from spark_ext.spark.logs.spark_log import SparkLog
from spark_ext.spark.logs.state_operators import StateOperator, operators

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PROVIDER: Final = "spark.sql.streaming.stateStore.providerClass"
_ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_FORMAT: Final = "spark.sql.streaming.stateStore.checkpointFormatVersion"
_PARTITIONS: Final = "spark.sql.shuffle.partitions"
_UNFINISHED: Final = "spark.sql.streaming.checkUnfinishedRepartitionOnRestart"
_CODEC: Final = "spark.sql.streaming.stateStore.compression.codec"
STAMPS: Final = "control"  # the folder of the stamps that offsets name
_COMPACT: Final = ".compact"
_SOURCE_LOG: Final = re.compile(r"\d+(\.compact)?")


def files_of_epoch(spark: SparkSession, checkpoint: str, epoch: int, who: str) -> tuple[str, ...]:
    """The files without which a query cannot continue right after a committed epoch.

    The query may be running; then Spark may remove any of them before it has been copied, if the epoch is an old one.
    `state_operators.relocate` makes a copy of them independent of the directory from which it was made. Returns
    relative paths, each once; `commits/<epoch>` is the last.
    """
    log = SparkLog(checkpoint)
    logs = ["metadata", *(f"offsets/{number}" for number in (epoch - 1, epoch) if number >= 0)]
    commit = f"commits/{epoch}"
    found = dict.fromkeys(_existing(log, *logs, commit))
    found.pop(commit)
    found.update(dict.fromkeys(_source_logs(log, epoch)))
    found.update(dict.fromkeys(_existing(log, *_stamps(log, epoch))))
    if log.has(watermarks.NAME):
        found[watermarks.NAME] = None
    ids = unique_ids(log, epoch, who)
    stores = backend_of(spark).state_files(spark, _conf(log, epoch).get(_CODEC, "lz4"))
    for operator in operators(log, epoch, sorted(ids)):
        found.update(dict.fromkeys(_existing(log, *operator.files(log))))
        for folder, version in _versions(operator, ids[operator.number], epoch, who):
            found.update(dict.fromkeys(_store_files(log, stores, folder, version)))
    return (*found, commit)


def copies_state(spark: SparkSession) -> bool:
    """Whether queries that begin in a session have state that `files_of_epoch` finds."""
    return spark.conf.get(_PROVIDER, "") == _ROCKSDB and spark.conf.get(_FORMAT, "1") == "2"


def is_stateful(checkpoint: str, epoch: int) -> bool:
    """Whether a query has state after a committed epoch."""
    log = SparkLog(checkpoint)
    # Commits of format 1 do not say so.
    return bool((log.commit(epoch) or {}).get("stateUniqueIds")) or bool(log.numbers("state"))


def state_partitions(checkpoint: str, epoch: int) -> int:
    """The number of partitions that the state of a query has at an epoch; 0 if it has none and the log does not say."""
    log = SparkLog(checkpoint)
    recorded = _conf(log, epoch).get(_PARTITIONS)
    if recorded is not None:
        return int(recorded)
    ids = (log.commit(epoch) or {}).get("stateUniqueIds")
    if ids:
        return max(map(len, ids.values()))
    return max((len(log.numbers(f"state/{operator}")) for operator in log.numbers("state")), default=0)


def unrecorded_settings(checkpoint: str) -> dict[str, str]:
    """Settings of the session with which a query has to continue, because its offset log does not hold them.

    Format 2 of the log does not have the number of partitions. Spark 4.2 then takes that of the session, whatever the
    state has, and fails when it looks whether an epoch that was planned and not committed is one of a repartition.
    """
    log = SparkLog(checkpoint)
    committed, planned = log.newest_commit(), log.newest_offsets()
    if committed is None or planned is None:
        return {}
    logged = [log.offsets(epoch) for epoch in {committed, planned}]
    if all(one is None or _PARTITIONS in one.metadata.get("conf", {}) for one in logged):
        return {}
    partitions = state_partitions(checkpoint, committed)
    return {_UNFINISHED: "false", **({_PARTITIONS: str(partitions)} if partitions else {})}


def _conf(log: SparkLog, epoch: int) -> dict[str, str]:
    offsets = log.offsets(epoch)
    if offsets is None:
        raise FileNotFoundError(f"{log.checkpoint}/offsets/{epoch} does not exist")
    return {str(key): str(value) for key, value in offsets.metadata.get("conf", {}).items()}


def _source_logs(log: SparkLog, epoch: int) -> Iterator[str]:
    """What Spark's own sources have written in `sources/<number>` for themselves; others write nothing there.

    The file source keeps a log of the files that it has seen, and its offset is a number of that log; now and then it
    writes all that it knows in one file. Kafka and rate write one file when they start for the first time.
    """
    offsets = log.offsets(epoch)
    for number, offset in enumerate(() if offsets is None else offsets.sources):
        folder = f"sources/{number}"
        names = {name: int(name.partition(".")[0]) for name in log.names(folder) if _SOURCE_LOG.fullmatch(name)}
        if isinstance(offset, dict) and "logOffset" in offset:
            names = {name: entry for name, entry in names.items() if entry <= int(offset["logOffset"])}
            compacted = max((entry for name, entry in names.items() if name.endswith(_COMPACT)), default=-1)
            names = {
                name: entry
                for name, entry in names.items()
                if entry > compacted or (entry == compacted and name.endswith(_COMPACT))
            }
        yield from (f"{folder}/{name}" for name in sorted(names, key=names.__getitem__))


def unique_ids(log: SparkLog, epoch: int, who: str) -> dict[int, list[list[str]]]:
    """For each stateful operator and partition the unique ids of its stores, in the order of the description."""
    ids = (log.commit(epoch) or {}).get("stateUniqueIds") or {}
    if not ids and not log.numbers("state"):
        return {}
    provider = _conf(log, epoch).get(_PROVIDER, "")
    if provider != _ROCKSDB or not ids:
        found = "format 1" if provider == _ROCKSDB else provider.rpartition(".")[2] or "an unknown provider"
        raise StateError(
            f"the query has a state provider other than RocksDB with checkpoint format 2: {found}",
            operator=f"{who}, epoch {epoch}",
            kept="the checkpoint directory is unchanged",
            do=f"set {_PROVIDER} and {_FORMAT} 2 as spark_ext.session() does, and start with a new state directory",
        )
    return {int(operator): partitions for operator, partitions in ids.items()}


def _stamps(log: SparkLog, epoch: int) -> Iterator[str]:
    """The files that say what configuration the epoch, and the one before it, had."""
    for number in (epoch - 1, epoch):
        logged = log.offsets(number) if number >= 0 else None
        for raw in () if logged is None else logged.sources:
            if kind_of(raw) is OffsetKind.CHANNELS and raw.get("stamp"):
                yield f"{STAMPS}/{raw['stamp']}.json"


def _versions(
    operator: StateOperator, partitions: list[list[str]], epoch: int, who: str
) -> Iterator[tuple[str, StateVersion]]:
    """Each store's folder, relative to the checkpoint, and its version after the epoch."""
    for partition, ids in enumerate(partitions):
        if len(ids) != len(operator.stores):
            raise StateError(
                f"operator {operator.name} has {len(operator.stores)} state stores, and {len(ids)} unique ids for "
                f"those of partition {partition}",
                operator=f"{who}, epoch {epoch}",
                kept="the checkpoint directory is unchanged",
                do="use the Spark version for which this release of spark-ext was made",
            )
        for store, unique_id in zip(operator.stores, ids, strict=True):
            yield operator.folder(partition, store), StateVersion(epoch + 1, unique_id)


def _store_files(log: SparkLog, stores: StateFiles, folder: str, version: StateVersion) -> Iterator[str]:
    root = f"{log.checkpoint.rstrip('/')}/{folder}"
    chain = [version]
    # A snapshot of the newest version may exist too, and makes all before it unnecessary.
    if not log.has(f"{folder}/{version.snapshot}"):
        chain = [*stores.lineage(root, version), version]
    snapshot = next((one for one in reversed(chain) if log.has(f"{folder}/{one.snapshot}")), None)
    if snapshot is not None:
        yield from _with_checksums(log, f"{folder}/{snapshot.snapshot}")
        yield from _existing(log, *(f"{folder}/{name}" for name in stores.referred(root, snapshot)))
        chain = [one for one in chain if one.number > snapshot.number]
    elif chain[0].number != 1:
        raise FileNotFoundError(f"{root}/{chain[0].snapshot} does not exist")
    yield from _with_checksums(log, *(f"{folder}/{one.changelog}" for one in chain))


def _with_checksums(log: SparkLog, *names: str) -> Iterator[str]:
    """Files that exist, each with Spark's checksum of it, which may be switched off or not written yet."""
    for name in _existing(log, *names):
        yield name
        if log.has(f"{name}.crc"):
            yield f"{name}.crc"


def _existing(log: SparkLog, *names: str) -> tuple[str, ...]:
    for name in names:
        if not log.has(name):
            raise FileNotFoundError(f"{log.checkpoint}/{name} does not exist")
    return names
