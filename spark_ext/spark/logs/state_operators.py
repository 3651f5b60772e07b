"""The stateful operators of a query, as Spark describes them in a checkpoint directory: which stores each one has.

Most have one description, `state/<operator>/_metadata/metadata`, and a schema in the folder of partition 0.
transformWithState has a description per run, `_metadata/v2/<first epoch>`, which names the files of its schemas by
absolute paths: a copy needs its own, see `relocate`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from spark_ext.spark.logs.spark_log import SparkLog
from spark_ext.storage import local_path

_ONLY: Final = "default"  # the store of an operator that has one: it has no folder of its own within the partition's
_PATHS: Final = "stateSchemaFilePaths"


@dataclass(frozen=True)
class StateOperator:
    """One stateful operator."""

    number: int  # its folder in `state`; each operator of a plan has one, counted from the sources
    name: str  # as Spark names it: `stateStoreSave`, `dedupe`, `symmetricHashJoin`
    stores: tuple[str, ...]  # the state stores of each partition, in the order in which commits list their ids
    description: str  # the file that describes it, relative to the checkpoint directory
    schemas: tuple[str, ...]  # the files of its schemas to which the description refers, likewise
    prefix: int  # how many columns of its keys Spark can look up alone; for session windows those beside the session

    def folder(self, partition: int, store: str) -> str:
        """The folder of a store, relative to the checkpoint directory."""
        folder = f"state/{self.number}/{partition}"
        return folder if store == _ONLY else f"{folder}/{store}"

    def files(self, log: SparkLog) -> tuple[str, ...]:
        """The files that describe the operator and its state, relative to the checkpoint directory."""
        own = (f"{self.folder(0, store)}/_metadata/schema" for store in self.stores)
        return (self.description, *self.schemas, *(name for name in own if log.has(name)))

    def has_keys(self, log: SparkLog) -> bool:
        """Whether its rows are distributed by keys: without any they are all in the first partition, always."""
        if self.name == "sessionWindowStateStoreSaveExec":
            return self.prefix > 0
        schema = log.read_bytes(f"{self.folder(0, self.stores[0])}/_metadata/schema")
        return schema is None or b'"fields":[]' not in schema


def operators(log: SparkLog, epoch: int, numbers: Iterable[int] | None = None) -> list[StateOperator]:
    """The stateful operators of a query after an epoch, in the order of their numbers: these, or all."""
    return [_operator(log, number, epoch) for number in sorted(log.numbers("state") if numbers is None else numbers)]


def relocate(checkpoint: str, place: str | None = None) -> None:
    """Let the descriptions in a copy of a checkpoint directory refer to the copy's own files.

    Without it transformWithState reads its schemas in the directory from which the copy was made, and a query on the
    copy cannot start once that is gone. The files are replaced, never changed in place: a copy made of hard links
    shares them with the original. It may be repeated, and does nothing to a directory that is at its place: `place`,
    where the copy is going to be by a rename, or where it is.
    """
    log = SparkLog(checkpoint)
    for number in log.numbers("state"):
        for batch in log.numbers(_versioned(number)):
            name = f"{_versioned(number)}/{batch}"
            head, content = _parsed(log, name)
            before = json.dumps(content)
            for store in content["stateStoreInfo"]:
                relative = [_relative(path, number) for path in store.get(_PATHS, ())]
                store[_PATHS] = [_absolute(place or checkpoint, path) for path in relative]
            if json.dumps(content) != before:
                log.replace(name, f"{head}\n{json.dumps(content, separators=(',', ':'))}")


def _operator(log: SparkLog, number: int, epoch: int) -> StateOperator:
    batch = max((one for one in log.numbers(_versioned(number)) if one <= epoch), default=None)
    name = f"state/{number}/_metadata/metadata" if batch is None else f"{_versioned(number)}/{batch}"
    _, content = _parsed(log, name)
    stores = content["stateStoreInfo"]
    schemas = (_relative(path, number) for store in stores for path in store.get(_PATHS, ()))
    return StateOperator(
        number=number,
        name=str(content["operatorInfo"]["operatorName"]),
        stores=tuple(str(store["storeName"]) for store in stores),
        description=name,
        schemas=tuple(dict.fromkeys(schemas)),
        prefix=sum(int(store["numColsPrefixKey"]) for store in stores),
    )


def _versioned(number: int) -> str:
    return f"state/{number}/_metadata/v2"


def _parsed(log: SparkLog, name: str) -> tuple[str, dict[str, Any]]:
    text = log.read(name)
    if text is None:
        raise FileNotFoundError(f"{log.checkpoint}/{name} does not exist")
    head, _, body = text.partition("\n")
    return head, log.parsed(name, body)


def _relative(path: str, number: int) -> str:
    folder = f"state/{number}/_stateSchema/"
    return folder + path.rpartition(f"/{folder}")[2]


def _absolute(checkpoint: str, name: str) -> str:
    """As Spark writes it: Hadoop's form of a path, which has no escapes."""
    local = local_path(checkpoint)
    root = checkpoint.rstrip("/") if local is None else f"file:{os.fspath(local)}"
    return f"{root}/{name}"
