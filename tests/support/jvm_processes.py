"""Counts the processes that a session's JVM starts, by the JVM's own record of them (JDK Flight Recorder)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession


@contextmanager
def recorded(spark: SparkSession, file: Path) -> Iterator[list[str]]:
    """The command of each process that the JVM starts during the block, in a list that is filled at its end."""
    java = spark._jvm
    assert java is not None
    recording = java.jdk.jfr.Recording()
    recording.enable("jdk.ProcessStart").withoutStackTrace()
    recording.start()
    found: list[str] = []
    try:
        yield found
        recording.stop()
        target = java.java.io.File(str(file)).toPath()
        recording.dump(target)
        events = java.jdk.jfr.consumer.RecordingFile.readAllEvents(target)
        found += [str(event.getString("command")) for event in events]
    finally:
        recording.close()
