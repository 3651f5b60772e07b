"""Log levels and stacks of the driver's JVM.

The level of the root logger also reaches the executors, those that come later included, if
`spark.executor.syncLogLevel.enabled` is set, as `session` does. Spark has no such way for single loggers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT: Final = "WARN"
"""Level of the root logger when nobody has set one, as in the shipped `log4j2.properties`."""


def set_level(spark: SparkSession, logger: str, level: str | None) -> None:
    """Set the level of a logger in the driver's JVM, and that of the root logger in executors too.

    Args:
        spark: the session.
        logger: its name; "" for the root.
        level: TRACE, DEBUG, INFO, WARN, ERROR or OFF; None: as if it had never been set.
    """
    if not logger:
        spark.sparkContext.setLogLevel(level or DEFAULT)
        return
    log4j = _log4j(spark)
    if level is not None:
        log4j.core.config.Configurator.setLevel(logger, log4j.Level.valueOf(level))
        return
    context = log4j.LogManager.getContext(False)
    context.getConfiguration().removeLogger(logger)
    context.updateLoggers()


def level_of(spark: SparkSession, logger: str) -> str:
    """The level of a logger in the driver's JVM; "" is the root."""
    manager = _log4j(spark).LogManager
    found = manager.getRootLogger() if not logger else manager.getLogger(logger)
    return str(found.getLevel().name())


def thread_dump(spark: SparkSession) -> str:
    """The stacks of all threads of the driver's JVM, as text."""
    jvm: Any = spark.sparkContext._jvm
    threads = jvm.java.lang.management.ManagementFactory.getThreadMXBean().dumpAllThreads(True, True)
    return "".join(_thread(thread) for thread in threads)


def _thread(thread: Any) -> str:
    lines = [f'"{thread.getThreadName()}" {thread.getThreadState()}']
    lines += [f"    at {frame}" for frame in thread.getStackTrace()]
    return "\n".join(map(str, lines)) + "\n\n"


def _log4j(spark: SparkSession) -> Any:
    jvm: Any = spark.sparkContext._jvm
    return jvm.org.apache.logging.log4j
