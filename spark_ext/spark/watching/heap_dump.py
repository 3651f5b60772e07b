"""The heap of the driver's JVM, as the file that tools for heaps read. Uses py4j.

Only a JVM that is a HotSpot can write one: OpenJDK and what is built from it. While it does, it does nothing else.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ENDING: Final = ".hprof"
"""How the name of such a file ends: a JVM refuses any other."""

_BEAN: Final = "com.sun.management.HotSpotDiagnosticMXBean"


def heap_used(spark: SparkSession) -> int:
    """How much of the heap is in use, bytes; with objects that nothing refers to any more.

    Raises:
        Exception: the JVM does not answer.
    """
    return int(_factory(spark).getMemoryMXBean().getHeapMemoryUsage().getUsed())


def write_heap(spark: SparkSession, path: Path) -> None:
    """Write the objects of the heap that are in use. The JVM collects garbage first, and stands still meanwhile.

    Args:
        spark: any session of the application.
        path: of a file that does not exist, in a folder that does; only its owner can read it.

    Raises:
        Exception: the JVM cannot write it, or is none that writes such files.
    """
    kind = _jvm(spark).java.lang.Class.forName(_BEAN)
    _factory(spark).getPlatformMXBean(kind).dumpHeap(str(path), True)


def _factory(spark: SparkSession) -> Any:
    return _jvm(spark).java.lang.management.ManagementFactory


def _jvm(spark: SparkSession) -> Any:
    return spark.sparkContext._jvm
