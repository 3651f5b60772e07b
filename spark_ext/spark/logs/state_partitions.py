"""The number of partitions of a query's state, changed in a copy of its checkpoint directory.

The state of each key is in the partition of its hash. Spark 4.2 can redistribute it while the query is stopped: by an
epoch without rows, whose state has the new number of partitions, as snapshots.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_ext.errors import StateError, refused
from spark_ext.spark.backend.failures import first_line
from spark_ext.spark.backend.kinds import backend_of, is_connect
from spark_ext.spark.capabilities import capabilities
from spark_ext.spark.logs.epoch_files import is_stateful, state_partitions, unique_ids
from spark_ext.spark.logs.spark_log import SparkLog
from spark_ext.spark.logs.state_operators import operators, relocate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def repartition(spark: SparkSession, checkpoint: str, partitions: int, who: str) -> int:
    """Distribute the state of a copied checkpoint over another number of partitions.

    Spark's parameter `enforce_exactly_once_sink` stays True: Spark refuses a directory with an epoch that was planned
    and not committed. With False it would mark that epoch as committed and read its input again in a later one. A sink
    that knows epochs by their numbers, and may have committed the first, would then write the same rows twice.

    The session must have the settings of the query's state (provider and checkpoint format): Spark takes them from
    there. After an error the copy may hold a part of the new epoch, and is of no use. Returns the newest committed
    epoch: the one that Spark has added, or the one that was there, if the state has that many partitions already.
    """
    if partitions < 1:
        raise refused(f"a state cannot have {partitions} partitions", who, "choose a number of at least 1")
    log = SparkLog(checkpoint)
    newest, planned = log.newest_commit(), log.newest_offsets()
    if newest is None:
        raise _refused("no epoch of the query is committed", who, "let the query commit an epoch first")
    if planned is not None and planned > newest:
        what = f"epoch {planned} of the query is planned and not committed"
        raise _refused(what, who, "let the query commit it, or use a copy of an epoch that is committed")
    # Without state Spark would plan an epoch before it fails, and the query could not be started again.
    require_state(checkpoint, newest, who)
    if state_partitions(checkpoint, newest) == partitions:
        return newest
    _require_keys(log, newest, who)
    relocate(checkpoint)
    try:
        backend_of(spark).repartition_state(spark, checkpoint, partitions)
    except Exception as problem:
        names = ", ".join(operator.name for operator in operators(log, newest))
        raise StateError(
            f"Spark cannot repartition the state of this query (stateful operators: {names}): {first_line(problem)}",
            operator=who,
            kept="the checkpoint directory from which the copy was made is unchanged",
            do=f"keep the number of partitions, {state_partitions(checkpoint, newest)}",
        ) from problem
    return newest + 1


def require_rescale(spark: SparkSession, who: str) -> None:
    """Refuse a Spark that cannot repartition state."""
    if not capabilities(spark.version).rescale:
        raise _refused(
            f"Spark {spark.version} cannot change the number of partitions of state",
            who,
            "keep the number of partitions, or run the job on Spark 4.2 or newer",
        )
    if is_connect(spark):
        raise _refused(
            "a client of Spark Connect cannot change the number of partitions of state",
            who,
            "keep the number of partitions, or run the job with a classic session",
        )


def require_state(checkpoint: str, epoch: int, who: str) -> None:
    """Refuse a query without state."""
    if not is_stateful(checkpoint, epoch):
        raise _refused("the query has no state that could be repartitioned", who, "do not rescale this query")


def _require_keys(log: SparkLog, epoch: int, who: str) -> None:
    """Refuse an operator whose rows are all in one partition, such as an aggregation without keys.

    Spark would distribute its state by the hash of nothing, and the query would look for it in the first partition
    only: it would continue with an empty state, and say nothing.
    """
    ids, expected = unique_ids(log, epoch, who), state_partitions(log.checkpoint, epoch)
    for operator in operators(log, epoch, ids):
        if len(ids[operator.number]) != expected or not operator.has_keys(log):
            raise _refused(
                f"the stateful operator {operator.name} ({operator.number}) has all its rows in one partition, "
                "and Spark would lose its state",
                who,
                f"keep the number of partitions, {expected}",
            )


def _refused(what: str, who: str, do: str) -> StateError:
    return StateError(what, operator=who, kept="the checkpoint directory is unchanged", do=do)
