"""A driver process: runs the jobs that it is sent, one at a time, in one Spark session, until it is killed.

Reads one JSON object per line: `{"do": "run", "definition": {...}, "root": ..., "state": ..., "takeover": false}`, then
perhaps `{"do": "stop"}`. Writes one per line: `{"ready": true}` at first, then the outcome of each run.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

import spark_ext as sx
from spark_ext.errors import SparkExtError
from tests.histories.definition import Definition


def built(spark: Any, now: Definition, root: Path, state: Path, takeover: bool) -> sx.Job:
    """The job of a definition.

    Raises:
        SparkExtError: a query was refused.
    """
    job = sx.Job(spark, "history", state=state, takeover=takeover, restart_backoff=20, restart_attempts=5)

    def add(query: str, source: str, sink: str, folder: str, target: str, renamed_from: str | None = None) -> None:
        rows = (
            spark.readStream.format("files")
            .schema("id bigint, word string")
            .options(
                uid=source,
                path=str(root / "input" / folder),
                format="csv",
                max_rows_per_epoch=now.rows,
                readers=1,
            )
        )
        given = {"uid": sink, "path": str(root / "output" / target)}
        if now.format == "files_2pc":
            given["format"] = "parquet"
        writer = rows.load().writeStream.format(now.format).options(**given)
        named: dict[str, Any] = {"renamed_from": renamed_from} if renamed_from else {}
        job.add(query, writer, **named)

    def first() -> None:
        add(now.query, now.source, now.sink, now.folder, now.target, now.renamed_from)

    def second() -> None:
        add("more", "more-in", "more-out", "c", "more")

    parts = [first, *([second] if now.more else [])]
    for part in reversed(parts) if now.more_first else parts:
        part()
    return job


class Drive:
    """Takes the commands."""

    def __init__(self) -> None:
        conf = {"spark.sql.shuffle.partitions": "1", "spark.driver.memory": "512m", "spark.ui.enabled": "false"}
        self._spark = sx.session("histories", master="local[2]", conf=conf)
        self._job: sx.Job | None = None
        self._stop = threading.Event()

    def run(self, given: dict[str, Any]) -> None:
        """Run one job, and report how it ended."""
        self._stop.clear()
        try:
            now = Definition(**given["definition"])
            job = built(self._spark, now, Path(given["root"]), Path(given["state"]), given["takeover"])
            job.start()
        except SparkExtError as problem:
            self.say(outcome="REFUSED", error=type(problem).__name__, text=str(problem))
            return
        except Exception as problem:
            self.say(outcome="CRASHED", error=type(problem).__name__, text=str(problem))
            return
        self._job = job
        if self._stop.is_set():
            job.stop()
        try:
            result = job.await_termination()
            before = {query.uid: query.finished_before for query in result.queries}
            self.say(outcome=result.state.value, finished_before=before)
        except SparkExtError as problem:
            self.say(outcome="FAILED", error=type(problem.__cause__ or problem).__name__, text=str(problem))
        except Exception as problem:
            self.say(outcome="CRASHED", error=type(problem).__name__, text=str(problem))
        finally:
            self._job = None

    def stop(self) -> None:
        """Stop the job that runs, now or as soon as it has started."""
        self._stop.set()
        job = self._job
        if job is not None:
            job.stop()

    @staticmethod
    def say(**what: Any) -> None:
        """One line to the parent."""
        os.write(SAY, (json.dumps(what) + "\n").encode())


# Spark and its workers write to standard output as well.
SAY = os.dup(1)
os.dup2(2, 1)


def main() -> None:
    drive = Drive()
    drive.say(ready=True)
    for line in sys.stdin:
        given = json.loads(line)
        act = drive.run if given["do"] == "run" else lambda _: drive.stop()
        threading.Thread(target=act, args=(given,), daemon=True).start()


if __name__ == "__main__":
    main()
