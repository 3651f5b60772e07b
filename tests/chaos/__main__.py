"""`python -m tests.chaos`: kills the flights job at random and at each named step; exits with 1 on a difference."""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, cast

import typer
from rich.console import Console
from rich.table import Table

from tests.chaos import follow, history
from tests.chaos.harness import Reference, Report, Target, kills_at_steps, random_kills
from tests.chaos.outlets import OUTLETS
from tests.chaos.scenario import COMMIT_STEPS, EXCHANGE_STEPS, FINAL_STEPS, START_STEPS, compact, diamond, flights
from tests.chaos.sinks import chaos, summary
from tests.support.cluster import Cluster

KINDS = ("driver", "worker", "executor", "jvm", "all")


def actions(job: str) -> dict[str, str]:
    """The action at each named step: the driver is killed, by itself or by a worker."""
    own: dict[str, str] = dict.fromkeys((*START_STEPS, *FINAL_STEPS), "kill")
    own |= dict.fromkeys(COMMIT_STEPS, "kill-driver")
    return own | (EXCHANGE_STEPS if job == "diamond" else {})


def main(
    kills: Annotated[int, typer.Option(min=0, help="random kills")] = 25,
    targets: Annotated[
        str, typer.Option(help=f"what is killed, comma-separated; one or more of: {', '.join(KINDS)}")
    ] = ("driver,worker,executor"),
    seed: Annotated[int, typer.Option(help="random seed; determines the order of events")] = 1,
    job: Annotated[str, typer.Option(help="flights, compact, diamond, history or follow")] = "flights",
    sink: Annotated[
        str, typer.Option(help="run a small job into this sink instead; several, comma-separated, or 'all'")
    ] = "",
    steps: Annotated[bool, typer.Option(help="kill at each named step too")] = True,
    per_round: Annotated[
        int | None, typer.Option(min=1, help="random kills per round of the job at most; default: any number")
    ] = None,
    data: Annotated[Path, typer.Option(help="prepared input of the flights job")] = Path("data"),
    keep: Annotated[
        Path | None, typer.Option(help="work in this directory, and keep everything for inspection")
    ] = None,
) -> None:
    """Kill a job's processes with SIGKILL, start it again until it ends, and compare all output by content."""
    if sink:
        _sinks(sink, kills, seed, steps, per_round, keep)
        return
    if job in ("history", "follow"):
        _own(history.chaos if job == "history" else follow.chaos, kills, seed, keep)
        return
    chosen = [cast(Target, target.strip()) for target in targets.split(",") if target.strip()]
    unknown = [target for target in chosen if target not in KINDS]
    if unknown or not chosen:
        raise typer.BadParameter(f"{', '.join(unknown) or 'nothing'} cannot be killed; choose from {', '.join(KINDS)}")
    if job not in ("flights", "compact", "diamond"):
        raise typer.BadParameter(f"there is no job '{job}'; choose flights, compact, diamond, history or follow")
    scenario = {"flights": lambda: flights(data.resolve()), "compact": compact, "diamond": diamond}[job]()
    console = Console()
    folder = (keep or Path(tempfile.mkdtemp(prefix="spark-ext-chaos-"))).resolve()
    folder.mkdir(parents=True, exist_ok=True)

    def say(what: str) -> None:
        console.print(what, markup=False, highlight=False)

    reports: list[Report] = []
    try:
        with ExitStack() as stack:
            cluster, env = None, {"SPARK_MASTER": "local[2]"}
            if "executor" in chosen:
                (folder / "cluster").mkdir(exist_ok=True)
                cluster = stack.enter_context(Cluster(folder / "cluster", workers=2))
                env = cluster.environment
                say(f"standalone cluster {cluster.master} with 2 workers")
            reference = Reference(scenario, folder, env)
            say(f"undisturbed run: {reference.seconds:.0f} s")
            reports.append(Report("undisturbed", problems=reference.problems, starts=1, rounds=1))
            if kills:
                reports.append(
                    random_kills(
                        reference,
                        folder,
                        kills=kills,
                        targets=chosen,
                        seed=seed,
                        env=env,
                        cluster=cluster,
                        per_round=per_round,
                        say=say,
                    )
                )
            if steps:
                reports.append(
                    kills_at_steps(reference, folder / "named", steps=actions(job), env=env, cluster=cluster, say=say)
                )
    finally:
        if keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    for report in reports:
        show(report, console)
    if any(report.problems for report in reports):
        raise typer.Exit(1)


def _own(chaos: Callable[..., Report], kills: int, seed: int, keep: Path | None) -> None:
    console = Console()
    folder = (keep or Path(tempfile.mkdtemp(prefix="spark-ext-chaos-"))).resolve()
    try:
        report = chaos(folder, kills=kills, seed=seed, say=lambda what: console.print(what, markup=False))
    finally:
        if keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    show(report, console)
    if report.problems:
        raise typer.Exit(1)


def _sinks(chosen: str, kills: int, seed: int, steps: bool, per_round: int | None, keep: Path | None) -> None:
    names = list(OUTLETS) if chosen == "all" else [name.strip() for name in chosen.split(",")]
    unknown = [name for name in names if name not in OUTLETS]
    if unknown:
        raise typer.BadParameter(f"there is no sink '{unknown[0]}'; choose from {', '.join(OUTLETS)}, or 'all'")
    console = Console()

    def say(what: str) -> None:
        console.print(what, markup=False, highlight=False)

    lines = []
    failed = False
    folder = (keep or Path(tempfile.mkdtemp(prefix="spark-ext-chaos-"))).resolve()
    try:
        for name in names:
            say(f"{name}:")
            place = folder / name
            place.mkdir(parents=True)
            reports = chaos(name, place, kills=kills, seed=seed, steps=steps, per_round=per_round, say=say)
            for report in reports:
                show(report, console)
            failed = failed or any(report.problems for report in reports)
            lines.append(summary(name, reports))
            say(lines[-1])
    finally:
        if keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    say("| sink | kills | driver | worker | server | rounds x rows | starts | differences | time |")
    say("|---|---|---|---|---|---|---|---|---|")
    for line in lines:
        say(line)
    if failed:
        raise typer.Exit(1)


def show(report: Report, console: Console) -> None:
    """Print a report as tables."""
    if report.kills:
        kills = Table("#", "killed", "where the job stood", "then", title=report.name, title_justify="left")
        for kill in report.kills:
            kills.add_row(str(kill.number), kill.target, kill.at, kill.then)
        console.print(kills)
        tables = ", ".join(f"{name} {rows:,} rows" for name, rows in report.tables.items())
        console.print(f"{report.starts} starts in {report.rounds} rounds, {report.seconds:.0f} s; {tables}")
    for problem in report.problems:
        console.print(f"PROBLEM {problem}", style="red", markup=False, highlight=False)
    if not report.problems:
        console.print(f"{report.name}: all tables equal by content, no duplicates, nothing left behind", style="green")


if __name__ == "__main__":
    # Raises SystemExit, so that a SIGTERM also terminates the processes that were started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    typer.run(main)
