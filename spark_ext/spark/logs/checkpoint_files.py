"""How a query's checkpoint directory is written: without a process for each file, where it is on a local disk.

Unless it is given another class, Spark writes through Hadoop's `FileContext`, which starts `readlink` and `chmod` for
each file of a local disk: 20 processes for an epoch without state, and 20 more for each partition of state. Hadoop's
`FileSystem` does the same with a fifth of them. On a local disk either ends in the same `rename` of the operating
system, after a look whether the file exists. Elsewhere `FileContext` may have an atomic rename where `FileSystem` has
none, so nothing is set there, nor where somebody has chosen a class.

It is set for one query, in the clone of the session in which Spark runs its epochs. In the user's session it would
hold for every query that is started meanwhile, and for the log that Spark's own file sink keeps beside its output,
wherever that is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from spark_ext.spark.backend.contract import FILE_MANAGER
from spark_ext.spark.backend.kinds import backend_of
from spark_ext.storage import local_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DATABRICKS: Final = "DATABRICKS_RUNTIME_VERSION"
"""A variable in the environment of every driver there."""


def is_improved(root: str, given: str | None, environment: Mapping[str, str]) -> bool:
    """Whether a query's files are written by `LOCAL_FILES`.

    Args:
        given: the class that somebody has set; None: nobody has.
    """
    return root.startswith("file:/") and given is None and _DATABRICKS not in environment


@contextmanager
def cheap_files(spark: SparkSession, checkpoint: str) -> Iterator[None]:
    """Start the query of this checkpoint directory, an absolute path or URI, in the block.

    Its files need few processes where they can.
    """
    place = local_path(checkpoint)
    if place is None or spark.conf.get(FILE_MANAGER, None) is not None:
        yield
    else:
        root = f"file:{place}"
        with backend_of(spark).with_local_files(spark, root, lambda given: is_improved(root, given, os.environ)):
            yield
