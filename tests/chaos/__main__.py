"""`python -m tests.chaos`: kills the flights job at random and at each named step; exits with 1 on a difference."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.console import Console
from rich.table import Table

from tests.chaos import beside, follow, history
from tests.chaos.commands import end_on_sigterm, workplace
from tests.chaos.harness import Report, Say, Target, kills_at_steps, random_kills, undisturbed
from tests.chaos.outlets import OUTLETS
from tests.chaos.scenario import Scenario, actions, compact, diamond, exchange, flights, remote_flights, speeds
from tests.chaos.sinks import chaos, summary
from tests.servers.connect import ConnectServer
from tests.servers.kafka import Broker
from tests.support.cheap_jvm import REMOTE
from tests.support.cluster import Cluster

KINDS = ("driver", "worker", "executor", "jvm", "all")
WITH_SERVER = ("driver", "worker", "jvm", "all", "server")  # of the job `exchange`; the server is a broker
REMOTE_KINDS = ("driver", "server", "executor", "worker")  # of a job in clients of Spark Connect


def main(
    kills: Annotated[int, typer.Option(min=0, help="random kills")] = 25,
    targets: Annotated[
        str, typer.Option(help=f"what is killed, comma-separated; one or more of: {', '.join(KINDS)}")
    ] = ("driver,worker,executor"),
    remote: Annotated[
        bool, typer.Option(help=f"flights or compact in clients of Spark Connect: {', '.join(REMOTE_KINDS)}")
    ] = False,
    seed: Annotated[int, typer.Option(help="random seed; determines the order of events")] = 1,
    job: Annotated[
        str, typer.Option(help="flights, compact, diamond, speeds, exchange, history, follow or beside")
    ] = "flights",
    kind: Annotated[str, typer.Option(help="of the exchange, with the job exchange: arrow, delta or kafka")] = "kafka",
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
    console = Console()

    def say(what: str) -> None:
        console.print(what, markup=False, highlight=False)

    with workplace("chaos", keep) as folder:
        if sink:
            failed = _sinks(sink, folder, console, say, kills=kills, seed=seed, steps=steps, per_round=per_round)
        elif job in ("history", "follow"):
            failed = show(
                (history if job == "history" else follow).chaos(folder, kills=kills, seed=seed, say=say), console
            )
        elif job == "beside":
            chosen = _targets(targets, ("driver", "jvm", "all"))
            failed = show(beside.chaos(folder, kills=kills, targets=chosen, seed=seed, say=say), console)
        elif job == "exchange":
            chosen = _targets(targets, WITH_SERVER if kind == "kafka" else KINDS)
            with Broker(folder / "broker") if kind == "kafka" else nullcontext() as broker:
                options = {} if broker is None else {"bootstrap_servers": broker.bootstrap, "request_timeout": "5 s"}
                reports = _job(exchange(kind, broker, options), folder, say, kills, chosen, seed, per_round, {})
            failed = any([show(report, console) for report in reports])
        else:
            chosen = _targets(targets, REMOTE_KINDS if remote else KINDS)
            scenarios = {"flights": lambda: flights(data.resolve()), "compact": compact}
            scenarios |= {"diamond": diamond, "speeds": speeds}
            if job not in scenarios:
                raise typer.BadParameter(
                    f"unknown job '{job}'; choose {', '.join(scenarios)}, exchange, history, follow or beside"
                )
            if remote:
                scenarios = {"flights": lambda: remote_flights(data.resolve()), "compact": compact}
            named = actions(job) if steps and not remote else {}
            reports = _job(scenarios[job](), folder, say, kills, chosen, seed, per_round, named, remote=remote)
            failed = any([show(report, console) for report in reports])
    if failed:
        raise typer.Exit(1)


def _targets(given: str, kinds: Sequence[str]) -> list[Target]:
    chosen = [cast(Target, target.strip()) for target in given.split(",") if target.strip()]
    unknown = [target for target in chosen if target not in kinds]
    if unknown or not chosen:
        raise typer.BadParameter(f"{', '.join(unknown) or 'nothing'} cannot be killed; choose from {', '.join(kinds)}")
    return chosen


def _job(
    scenario: Scenario,
    folder: Path,
    say: Say,
    kills: int,
    targets: Sequence[Target],
    seed: int,
    per_round: int | None,
    steps: Mapping[str, str],
    *,
    remote: bool = False,
) -> list[Report]:
    with ExitStack() as stack:
        on: dict[str, Any] = {"env": {"SPARK_MASTER": "local[2]"}, "say": say}
        if "executor" in targets:
            (folder / "cluster").mkdir(exist_ok=True)
            cluster = stack.enter_context(Cluster(folder / "cluster", workers=2))
            on |= {"cluster": cluster, "env": cluster.environment}
            say(f"standalone cluster {cluster.master} with 2 workers")
        if remote:
            server = stack.enter_context(ConnectServer(folder / "server.log", cluster=on.get("cluster")))
            on |= {"cluster": server, "env": {REMOTE: server.address}}
            scenario = replace(scenario, server=server)
        reference, report = undisturbed(scenario, folder, on["env"])
        say(f"undisturbed run: {report.seconds:.0f} s")
        reports = [report]
        if kills:
            how: dict[str, Any] = {"kills": kills, "targets": targets, "seed": seed, "per_round": per_round}
            reports.append(random_kills(reference, folder, **how, **on))
        if steps:
            reports.append(kills_at_steps(reference, folder / "named", steps=steps, **on))
    return reports


def _sinks(chosen: str, folder: Path, console: Console, say: Say, **how: Any) -> bool:
    names = list(OUTLETS) if chosen == "all" else [name.strip() for name in chosen.split(",")]
    unknown = [name for name in names if name not in OUTLETS]
    if unknown:
        raise typer.BadParameter(f"unknown sink '{unknown[0]}'; choose from {', '.join(OUTLETS)}, or 'all'")
    lines, failed = [], False
    for name in names:
        say(f"{name}:")
        (folder / name).mkdir(parents=True)
        reports = chaos(name, folder / name, say=say, **how)
        failed |= any([show(report, console) for report in reports])
        lines.append(summary(name, reports))
        say(lines[-1])
    say("| sink | kills | driver | worker | server | rounds x rows | starts | differences | time |")
    say("|---|---|---|---|---|---|---|---|---|")
    for line in lines:
        say(line)
    return failed


def show(report: Report, console: Console) -> bool:
    if report.kills:
        kills = Table("#", "killed", "where the job stood", "then", title=report.name, title_justify="left")
        for number, kill in enumerate(report.kills, 1):
            kills.add_row(str(number), kill.target, kill.at, kill.then)
        console.print(kills)
        tables = ", ".join(f"{name} {rows:,} rows" for name, rows in report.tables.items())
        console.print(f"{report.starts} starts in {report.rounds} rounds, {report.seconds:.0f} s; {tables}")
    for problem in report.problems:
        console.print(f"PROBLEM {problem}", style="red", markup=False, highlight=False)
    if not report.problems:
        console.print(f"{report.name}: all tables equal by content, no duplicates, nothing left behind", style="green")
    return bool(report.problems)


if __name__ == "__main__":
    end_on_sigterm()
    typer.run(main)
