"""`python -m tests.chaos.two_writers`: two processes commit to one Delta table in an object store; none may be lost.

Nothing is locked: a commit is a write on the condition that the log has no entry of that number yet.
"""

import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from deltalake import DeltaTable

from spark_ext.errors import CommitError
from spark_ext.testing.sink_driver import Driver
from tests.chaos.scenario import ROOT
from tests.servers.object_store import Bucket, running
from tests.sinks.store_targets import DeltaInStore
from tests.support.processes import Tree

ROWS = 3  # in each commit
LIMIT = 3_600.0  # how long both may take, s


def write(bucket: Bucket, uid: str, first: int, commits: int) -> None:
    driver = Driver(DeltaInStore(bucket), uid=uid)
    driver.claim()
    for epoch in range(commits):
        begin = first + epoch * ROWS
        rows = [{"id": number, "name": uid} for number in range(begin, begin + ROWS)]
        while True:
            try:
                driver.run(epoch, rows)
                break
            except CommitError as problem:  # the other writer was faster in all attempts; a job does the same
                print(problem.what)
    print(Counter(outcome.name for outcome in driver.outcomes))


def main(
    commits: Annotated[int, typer.Option(min=2, help="of both writers together")] = 1_000,
    uid: Annotated[str, typer.Option(hidden=True)] = "",
    place: Annotated[str, typer.Option(hidden=True)] = "",
) -> None:
    each = commits // 2
    if uid:
        write(Bucket(os.environ["AWS_ENDPOINT_URL"], place), uid, each * ROWS * (uid == "two"), each)
        return
    with running() as store, tempfile.TemporaryDirectory() as logs:
        bucket = store.bucket()
        os.environ.update(bucket.environment, PYTHONPATH=str(ROOT))
        command = [sys.executable, "-m", "tests.chaos.two_writers", "--commits", str(commits), "--place", bucket.name]
        began = time.monotonic()
        with (
            Tree([*command, "--uid", "one"], Path(logs) / "one.log") as one,
            Tree([*command, "--uid", "two"], Path(logs) / "two.log") as two,
        ):
            codes = [one.wait(LIMIT), two.wait(LIMIT)]
            said = [one.text(), two.text()]
        seconds = time.monotonic() - began
        table = DeltaTable(f"{bucket.uri}/t")
        found = Counter(table.to_pyarrow_table(columns=["id"])["id"].to_pylist())
        log = [key for key in bucket.keys("t/_delta_log/") if key.endswith(".json")]
    missing = set(range(2 * each * ROWS)) - found.keys()
    twice = [number for number, times in found.items() if times > 1]
    print(
        f"{2 * each:,} commits by two processes in {seconds:.0f} s: the table is at version {table.version():,} with "
        f"{len(log):,} entries in its log; {len(found):,} rows, {len(missing)} missing, {len(twice)} there twice"
    )
    if missing or twice or len(found) != 2 * each * ROWS or codes != [0, 0]:
        print(codes, *said, sep="\n")
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
