"""Kills of driver, workers and server of a job that writes to one sink: at its named steps, and at random."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spark_ext.failpoints import ONCE_DIR, VARIABLE, FailPoint
from tests.chaos import harness
from tests.chaos.harness import Kill, Reference, Report, Round, Say, Target
from tests.chaos.outlets import OUTLETS, Outlet, SinkScenario
from tests.chaos.verify import Content
from tests.support.processes import Tree

LOCAL = {"SPARK_MASTER": "local[2]"}
EVERY_START = (FailPoint.INCARNATION_TAKEN, FailPoint.SINK_CLAIMED)
EVERY_COMMIT = (
    FailPoint.SOURCE_PLANNED, FailPoint.SOURCE_READ, FailPoint.SINK_WRITTEN, FailPoint.SINK_BEFORE_COMMIT,
    FailPoint.SINK_COMMITTED,
)  # fmt: skip
"""Fail points that an epoch passes with any sink."""


def chaos(
    sink: str,
    folder: Path,
    *,
    kills: int,
    seed: int = 1,
    steps: bool = True,
    per_round: int | None = None,
    say: Say = print,
) -> list[Report]:
    """Test a sink under this many kills, those at named steps included; returns a report for each series."""
    reports: list[Report] = []
    with OUTLETS[sink](folder) as outlet:
        reference = known(outlet)
        if steps:
            reports.append(processes_at_steps(reference, folder / "processes", outlet, say))
            if outlet.server is not None:
                reports.append(server_at_steps(reference, folder / "server", outlet, say))
        left = kills - sum(len(report.kills) for report in reports)
        if left > 0 and not any(report.problems for report in reports):
            how: dict[str, Any] = {"kills": left, "targets": _targets(outlet), "seed": seed, "per_round": per_round}
            reports.append(harness.random_kills(reference, folder, **how, env=LOCAL, say=say))
    return reports


def known(outlet: Outlet) -> Reference:
    return Reference(SinkScenario.of(outlet), {"copy": Content(outlet.expected())})


def _targets(outlet: Outlet) -> list[Target]:
    # Killing a driver costs a start of about ten seconds; killing anything else is quick.
    if outlet.server is None:
        return ["worker", "worker", "driver", "worker"]
    return ["worker", "server", "worker", "server", "driver"]


def processes_at_steps(reference: Reference, folder: Path, outlet: Outlet, say: Say) -> Report:
    """Kill the driver at each step of a start and of the end; at those of an epoch the worker or, twice, the driver."""
    steps = dict.fromkeys((*EVERY_START, *outlet.starts, *outlet.ends), "kill")
    steps |= dict.fromkeys((*EVERY_COMMIT, *outlet.commits), "kill")
    steps[outlet.commits[0]] = steps[outlet.commits[-1]] = "kill-driver"
    return harness.kills_at_steps(reference, folder, steps=steps, env=LOCAL, say=say)


def server_at_steps(
    reference: Reference, folder: Path, outlet: Outlet, say: Say, env: Mapping[str, str] = LOCAL
) -> Report:
    """Kill the server at each step of an epoch, and start it again before the worker continues."""
    server = outlet.server
    assert server is not None
    steps = (*EVERY_COMMIT[2:], *outlet.commits)
    report = Report(f"the server at {len(steps)} named steps")
    once = folder / "acted"
    once.mkdir(parents=True)
    gates = {step: folder / f"gate-{step}" for step in steps}
    points = {VARIABLE: ";".join(f"{step}=wait:{gate}" for step, gate in gates.items()), ONCE_DIR: str(once)}
    waiting: Mapping[str, Path] = {step: gate.with_name(gate.name + ".waiting") for step, gate in gates.items()}
    left = list(steps)
    with harness.timed(report), Round(reference, folder / "server-steps", env, report, say=say) as round_:

        def watch(run: Tree) -> int | None:
            code = None
            while code is None:
                code = run.wait(0.05)
                for step in [step for step in left if waiting[step].exists()]:
                    server.kill()
                    server.start()
                    left.remove(step)
                    round_.killed(f"server at {step}", round_.where(), "continues", f"kill -9 server at {step}")
                    gates[step].touch()
            return code

        if round_.finish(watch, **points):
            report.problems += [f"the step {step} was never reached" for step in left]
    return report


def summary(sink: str, reports: list[Report]) -> str:
    """A line of the table in `docs/exactly-once.md`."""
    kills = [kill for report in reports for kill in report.kills]
    kinds = {"driver": 0, "worker": 0, "server": 0}
    for kill in kills:
        kinds[_kind(sink, kill)] += 1
    problems = sum(len(report.problems) for report in reports)
    seconds = sum(report.seconds for report in reports)
    rounds, starts = (sum(getattr(report, name) for report in reports) for name in ("rounds", "starts"))
    rows = max((rows for report in reports for rows in report.tables.values()), default=0)
    return (
        f"| `{sink}` | {len(kills)} | {kinds['driver']} | {kinds['worker']} | {kinds['server']} | {rounds} x {rows:,} "
        f"| {starts} | {problems or 'none'} | {seconds:.0f} s |"
    )


def _kind(sink: str, kill: Kill) -> str:
    step, at_a_step, action = kill.target.partition(" (")
    if not at_a_step:
        return "server" if step.startswith("server") else step
    outlet = next(kind for kind in Outlet.__subclasses__() if sink.startswith(kind.name))
    return "driver" if step in (*EVERY_START, *outlet.starts, *outlet.ends) or action == "kill-driver)" else "worker"
