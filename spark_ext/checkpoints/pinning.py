"""Writing a savepoint: the files of a cut are linked or copied into a folder before Spark and releases delete them.

The caller ensures that no exchange releases anything meanwhile. Spark deletes files of an epoch when about a hundred
later ones are committed. Should that come in between, the savepoint is given up, and all else is as it was.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_ext.checkpoints.savepoint import (
    CHECKPOINT,
    DEFINITIONS,
    FLAGS,
    About,
    Savepoint,
    exchange_folder,
    query_folder,
    seal,
    write_flags,
)
from spark_ext.errors import CheckpointError, ConfigurationError, StorageError
from spark_ext.exchange.pinned import pin as pin_exchange
from spark_ext.failpoints import FailPoint, reach
from spark_ext.spark.logs.epoch_files import files_of_epoch
from spark_ext.storage import LocalFolder, Location, child, link, local_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_ext.exchange.contract import ExchangeMaster
    from spark_ext.ledger.schema import FinishedRow
    from spark_ext.model.checkpoint_metadata import CheckpointMetadata
    from spark_ext.model.definitions import QueryDefinition


@dataclass(frozen=True)
class ToPin:
    """What a savepoint is made of."""

    about: About
    metadata: CheckpointMetadata
    definitions: Mapping[str, QueryDefinition]
    flags: Sequence[FinishedRow]
    checkpoints: Mapping[str, str]  # Spark's checkpoint directory of each query of the cut
    exchanges: Mapping[str, tuple[ExchangeMaster, str]]  # master and folder of each exchange that the metadata name


def refuse_used(folder: str, operator: str) -> None:
    """Refuse a folder that holds anything."""
    found = next(iter(Location.of(folder, {}).folder.files()), None)
    if found is not None:
        raise ConfigurationError(
            f"the folder {folder} is not empty: it has '{found}'",
            operator=operator,
            kept="the folder and the job are unchanged",
            do="give each savepoint a folder of its own",
        )


def pin(spark: SparkSession, folder: str, what: ToPin, before_seal: Callable[[], object] = lambda: None) -> Savepoint:
    """Write a savepoint into a folder that is empty or missing.

    Args:
        before_seal: called once all of it is there but the manifest, which makes it a savepoint. If it raises an
            exception, what was written is deleted again.
    """
    operator = f"job '{what.about.job}'"
    refuse_used(folder, operator)
    local = local_path(folder)
    try:
        if local is not None:
            LocalFolder(local).make()
    except OSError as problem:
        raise not_writable(folder, operator, problem) from problem
    try:
        return _written(spark, folder, what, before_seal)
    except FileNotFoundError as gone:
        _delete(folder)
        raise CheckpointError(
            f"a file of the cut was deleted before it was pinned: {gone.filename or gone}",
            operator=operator,
            kept="all committed epochs; the savepoint was given up",
            do="take it again; if that happens again, raise spark.sql.streaming.minBatchesToRetain",
        ) from gone
    except OSError as problem:
        _delete(folder)
        raise not_writable(folder, operator, problem) from problem
    except BaseException:
        _delete(folder)
        raise


def not_writable(folder: str, operator: str, problem: OSError) -> StorageError:
    """The error for a folder in which no savepoint can be written."""
    return StorageError(
        f"the savepoint {folder} cannot be written: {problem}",
        operator=operator,
        kept="all committed epochs; the savepoint was given up",
        do="make the folder writable, or give another one",
    )


def _written(spark: SparkSession, folder: str, what: ToPin, before_seal: Callable[[], object]) -> Savepoint:
    names: list[str] = []
    for query, part in what.metadata.queries.items():
        if part.epoch is None or part.finished:
            continue  # one that has finished is never started again, and needs nothing of Spark's
        reach(FailPoint.SAVEPOINT_BEFORE_QUERY)
        checkpoint, place = what.checkpoints[query], child(query_folder(query), "checkpoint")
        for name in files_of_epoch(spark, checkpoint, part.epoch, f"job '{what.about.job}', query '{query}'"):
            link(child(checkpoint, name), child(folder, f"{place}/{name}"))
            names.append(f"{place}/{name}")
    for name, held in what.metadata.exchanges.items():
        place = exchange_folder(name)
        pinned = pin_exchange(*what.exchanges[name], held.first, held.end, child(folder, place))
        names += [f"{place}/{one}" for one in pinned.files]
    reach(FailPoint.SAVEPOINT_PINNED)
    out = Location.of(folder, {}).folder
    out.write(CHECKPOINT, json.dumps(what.metadata.to_json()))
    out.write(DEFINITIONS, json.dumps({query: one.to_json() for query, one in what.definitions.items()}))
    write_flags(folder, list(what.flags))
    names += [CHECKPOINT, DEFINITIONS, FLAGS]
    before_seal()
    reach(FailPoint.SAVEPOINT_BEFORE_MANIFEST)
    files = seal(folder, what.about, names)
    reach(FailPoint.SAVEPOINT_SEALED)
    return Savepoint(folder, what.about, what.metadata, what.definitions, tuple(what.flags), files)


def _delete(folder: str) -> None:
    """Take away what was written; what cannot be deleted has no manifest, and is no savepoint."""
    with suppress(OSError):
        Location.of(folder, {}).folder.delete_tree()
