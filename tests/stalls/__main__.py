"""`python -m tests.stalls`: queries that are stuck and queries that only seem so; exits with 1 on a wrong verdict.

Some forty times a query is stopped, and as often one that is slow, idle, paused, throttled or skewed is left alone.
"""

import os
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console
from rich.table import Table

import spark_ext as sx
from spark_ext.ledger import Ledger
from spark_ext.ledger.schema import ExecutionStateRow, IncidentRow
from tests.stalls import healthy, operators, stuck
from tests.support import operators as plain_operators
from tests.support.cluster import Cluster
from tests.support.waiting import until

WITHIN = 3.0  # usual epochs in which a query that stands still should be found, if they are long enough
console = Console(width=160)


def main(
    cluster: Annotated[bool, typer.Option(help="on a standalone cluster of two workers")] = False,
    shapes: Annotated[str, typer.Option(help="kinds of stuck queries, comma-separated")] = ",".join(stuck.SHAPES),
    usual: Annotated[float, typer.Option(min=0, help="how long an epoch of the stuck queries reads, s")] = 0.0,
    cases: Annotated[str, typer.Option(help="only cases of stuck queries with one of these words, by commas")] = "",
    names: Annotated[str, typer.Option(help="kinds of healthy queries, by commas; '': none")] = ",".join(
        (*healthy.CASES, *healthy.HELD)
    ),
    rounds: Annotated[int, typer.Option(min=0, help="how often each healthy query is run")] = 3,
    seconds: Annotated[float, typer.Option(help="how long")] = 25.0,
) -> None:
    """Find the stuck ones, with the right verdict, and none of the others."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if cluster:
            (folder / "cluster").mkdir()
            os.environ.update(stack.enter_context(Cluster(folder / "cluster", workers=2)).environment)
        for module in (operators, plain_operators, stuck, healthy):
            cloudpickle.register_pickle_by_value(module)
        conf = {"spark.sql.shuffle.partitions": "2", "spark.executor.memory": "600m"}
        spark = sx.session("stalls", master=None if cluster else "local[2]", conf=conf)
        stack.callback(spark.stop)
        sx.register(spark, operators.StoppingNumbers, operators.StoppingFolder)
        caught = [
            one
            for shape in filter(None, shapes.split(","))
            for one in _stuck(spark, folder / shape, shape, cases.split(","), usual, cluster=cluster)
        ]
        false = []
        chosen = [name for name in names.split(",") if name]
        light = [name for name in chosen if name in healthy.LIGHT]
        for number in range(rounds):
            for together in (light, *([name] for name in chosen if name not in light)):
                with ThreadPoolExecutor(max(1, len(together))) as threads:
                    places = [folder / f"{name}-{number}".replace(" ", "-") for name in together]
                    of = partial(_healthy, spark, seconds=seconds)
                    false += [line for lines in threads.map(of, places, together) for line in lines]
    _report(caught, false, rounds * len(chosen))


def _stuck(
    spark: SparkSession, folder: Path, shape: str, words: list[str], work: float, *, cluster: bool
) -> list[stuck.Caught]:
    job = stuck.StuckJob(spark, folder, shape, work)
    job.job.start()
    found = []
    try:
        job.moves(10 if work else 20)
        chosen = [one for one in stuck.cases(shape, cluster=cluster) if any(word in one[0] for word in words)]
        for name, expected, stopped in chosen:
            found.append(job.caught(name, expected, partial(stopped, job)))
            one = found[-1]
            console.print(f"{name}: {one.found} after {one.seconds:.1f} s, {one.epochs:.1f} usual epochs")
    finally:
        job.job.stop()
    return found


def _healthy(spark: SparkSession, folder: Path, name: str, seconds: float) -> list[str]:
    folder.mkdir(parents=True)

    def source(rate: int, limit: int | None = None, gate: Path | None = None) -> DataFrame:
        reader = spark.readStream.format("stopping_numbers").option("uid", folder.name).option("counts", "1,1")
        reader = reader.option("live", "true").option("rate", str(rate)).option("gate", str(gate or ""))
        return reader.option("max_rows_per_epoch", str(limit)).load() if limit else reader.load()

    job = sx.Job(spark, folder.name, state=folder / "state", interval=healthy.INTERVALS.get(name, "300 ms"))
    if name in healthy.HELD:
        healthy.HELD[name](job, source, folder)
    else:
        job.add("q", healthy.CASES[name](source, folder))
    during = healthy.DURING.get(name)
    job.start()
    try:
        until(lambda: job.snapshot().query("q").epochs > 0, "an epoch", 120)
        with during(spark, job, folder) if during else nullcontext():
            time.sleep(seconds)
        if name in healthy.HELD:
            return _named(job, name)
    except TimeoutError as problem:
        return [f"{name}: {problem}"]
    finally:
        job.stop()
    rows = _incidents(job)
    console.print(f"{name}: {'nothing' if not rows else rows[0].what}")
    return [f"{name}: {row.what}" for row in rows]


FALSE = ("stall", "slow", "behind", "backpressure")


def _incidents(job: sx.Job) -> list[IncidentRow]:
    return Ledger(job.state_directory).table(IncidentRow).rows([("type", "in", FALSE)])


def _named(job: sx.Job, name: str) -> list[str]:
    """What is wrong with what is said of a query that its reader holds back; until then nothing may be said."""
    reason = "held back by query 'slow'"
    states = Ledger(job.state_directory).table(ExecutionStateRow)
    said = [row for row in states.rows([("operator", "=", "q")]) if row.reason.startswith(reason)]
    early = [f"{name}, early: {row.what}" for row in _incidents(job)]
    found = until(lambda: _incidents(job), "an incident", 120)
    console.print(f"{name}: {found[0].what}")
    right = [row for row in found if row.type == "backpressure" and row.labels.get("function") == "sleeps_for_each_row"]
    wrong = [f"{name}: {row.what}" for row in found if row not in right]
    return [*early, *wrong, *([] if said else [f"{name}: no reason says so"])]


def _report(caught: list[stuck.Caught], false: list[str], healthy_ones: int) -> None:
    table = Table("stuck in", "expected", "found", "after, s", "usual epoch, s", "usual epochs")
    for one in caught:
        style = None if one.right else "red"
        figures = (f"{figure:.1f}" for figure in (one.seconds, one.usual, one.epochs))
        table.add_row(one.case, one.expected, one.found, *figures, style=style)
    if caught:
        console.print(table)
    for line in false:
        console.print(f"FALSE ALARM {line}", style="red", markup=False)
    right = sum(one.right for one in caught)
    print(f"{right} of {len(caught)} stalls found, with the right verdict; {len(false)} false alarms of {healthy_ones}")
    stuck_ones = [one for one in caught if one.found.removesuffix(" (slow)") == one.found]
    within = sum(one.epochs <= WITHIN for one in stuck_ones)
    most = max((one.epochs for one in stuck_ones), default=0.0)
    print(f"{within} of {len(stuck_ones)} within {WITHIN:g} usual epochs of the last one, {most:.1f} at most")
    sys.exit(0 if right == len(caught) and not false else 1)


if __name__ == "__main__":
    typer.run(main)
