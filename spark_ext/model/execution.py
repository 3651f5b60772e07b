"""What a query does, finer than its life cycle: the state that its time counts for, by what Spark says of it. Pure.

The life cycle (`lifecycle`) says what may follow what, and decisions rest on it. Execution states only divide the time
of a query for those who watch it. In its life cycle a query is RUNNING from the moment Spark has started it; here it is
so once it does what it was started for:

    DEPLOYING   its planners, executors or Python workers are being started
    SCHEDULING  an epoch is planned, and no task of it has a slot
    RESTORING   the first epoch after a start is loading the state that it continues from
    PAUSED      a control event keeps its sources from reading
    RUNNING     anything else, also waiting for data

The idea of such states, and that a job has the least advanced one of its parts, is Flink's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum
from typing import Final

from spark_ext.model.lifecycle import ORDER, State


class Phase(str, Enum):
    """What a Spark query is busy with, by its status message."""

    STARTING = "Initializing"  # it builds its sources
    PLANNING = "Getting offsets"  # it asks its sources how far the next epoch reads
    EPOCH = "Processing new data"  # it runs an epoch, from the plan to the commit of the sink
    IDLE = "Waiting for"  # it waits for data, or for its trigger
    UNKNOWN = ""  # it does not run, or says something else

    @classmethod
    def of(cls, message: str) -> Phase:
        """The phase that a status message stands for."""
        if message.startswith("Writing offsets"):
            return cls.PLANNING
        return next((phase for phase in cls if phase.value and message.startswith(phase.value)), cls.UNKNOWN)


@dataclass(frozen=True)
class Tasks:
    """The tasks of the Spark jobs that a query is running."""

    running: int = 0
    waiting: int = 0  # they could run, and have no slot
    done: int = 0
    failed: int = 0  # attempts that Spark has repeated, or will repeat
    last_stage_done: int = 0  # tasks that have completed of the last stage, in which state is kept


@dataclass(frozen=True)
class Cluster:
    """The executors of a Spark application."""

    executors: int  # that are registered; in local mode the driver
    slots: int  # tasks that they can run at once
    busy: int  # tasks that they are running, of any query


@dataclass(frozen=True)
class Look:
    """What Spark says of a query at one moment."""

    at: datetime
    phase: Phase
    tasks: Tasks | None  # None: Spark runs no job for it
    cluster: Cluster | None = None  # None: unknown


QUIET_LOOKS: Final = 10  # polls in a row without a Spark job after which an epoch is taken to run in the driver alone
WAITING: Final = timedelta(seconds=5)  # without a slot for any task after which an epoch is SCHEDULING


@dataclass(frozen=True)
class Progress:
    """What is known of a Spark query since its start."""

    stateful: bool = False  # whether it continues from state
    settled: bool = False  # whether it has done what it was started for: committed or run an epoch, or waited for data
    quiet: int = 0  # looks in a row at an epoch without a Spark job
    waiting_since: datetime | None = None  # the first of the looks in a row at tasks without a slot
    look: Look | None = None

    @property
    def lacks_slots(self) -> bool:
        """Whether its tasks wait for slots."""
        look = self.look
        return look is not None and self.waiting_since is not None and look.at - self.waiting_since >= WAITING

    def committed(self) -> Progress:
        """An epoch has been committed."""
        return replace(self, settled=True, quiet=0, waiting_since=None, look=None)

    def after(self, look: Look) -> Progress:
        """What is known after a further look."""
        tasks = look.tasks
        waits = tasks is not None and tasks.waiting > 0 and tasks.running == 0
        quiet = self.quiet + 1 if look.phase is Phase.EPOCH and tasks is None else 0
        runs = tasks is not None and (tasks.running > 0 or tasks.done > 0)
        restored = tasks is not None and tasks.last_stage_done > 0
        settled = (
            self.settled
            or look.phase is Phase.IDLE
            or quiet >= QUIET_LOOKS
            or (runs and (restored or not self.stateful))
        )
        return replace(
            self,
            settled=settled,
            quiet=quiet,
            waiting_since=(self.waiting_since or look.at) if waits else None,
            look=look,
        )


REQUESTED: Final = "requested by "
"""How the reason of a state begins that somebody asked for. It is part of the ledger's format."""


@dataclass(frozen=True)
class Shown:
    """The execution state of a query or a job, and what led to it."""

    state: State
    reason: str = ""
    since: datetime | None = None  # when it began, UTC, if that was before it was noticed
    incident: str | None = None  # to which its time belongs; None: that of the state before it, if it is downtime


def execution_state(
    lifecycle: State, reason: str, progress: Progress, *, starting: bool = False, paused: bool = False
) -> Shown:
    """What a query does; `starting` while Spark is asked to start it, `paused` if a control event stops its reading."""
    if lifecycle is State.CREATED and starting:
        return Shown(State.DEPLOYING, _deploying(None))
    if lifecycle is not State.RUNNING:
        return Shown(lifecycle, reason)
    look = progress.look
    tasks = None if look is None else look.tasks
    if progress.lacks_slots and look is not None:
        return Shown(State.SCHEDULING, why_waiting(look), progress.waiting_since)
    if paused:
        return Shown(State.PAUSED, f"{REQUESTED}a control event")
    if progress.settled:
        return Shown(State.RUNNING, reason)
    if progress.stateful and tasks is not None and tasks.running > 0:
        return Shown(State.RESTORING, "the first epoch is loading its state")
    return Shown(State.DEPLOYING, _deploying(look))


def _deploying(look: Look | None) -> str:
    phase = Phase.UNKNOWN if look is None else look.phase
    if phase is Phase.PLANNING:
        return "the first epoch is being planned"
    if phase is Phase.EPOCH:
        return "workers are being started"
    return "Spark is starting the query"


def has_free_slots(cluster: Cluster | None) -> bool:
    """Whether executors are known to have slots that no task takes."""
    return cluster is not None and cluster.busy < cluster.slots


def why_waiting(look: Look) -> str:
    """Why tasks have no slot."""
    waiting = 0 if look.tasks is None else look.tasks.waiting
    begin = f"{waiting} task{'' if waiting == 1 else 's'} without a slot: "
    cluster = look.cluster
    if cluster is None:
        return begin + "Spark does not say why"
    if cluster.executors == 0:
        return begin + "no executor is registered"
    if not has_free_slots(cluster):
        return begin + f"all {cluster.slots} are taken by other queries and jobs"
    return begin + f"{cluster.busy} of {cluster.slots} are taken, and Spark has not assigned the others"


def current(lifecycle: State, shown: Shown) -> Shown:
    """The execution state, unless the life cycle has ended meanwhile."""
    return Shown(lifecycle) if lifecycle.ended and shown.state is not lifecycle else shown


HEALTHY: Final = (State.RUNNING, State.PAUSED, State.FINISHING)


def job_execution(lifecycle: State, queries: Iterable[tuple[str, Shown]], *, ran: bool) -> Shown:
    """What a job does: the least advanced state of its queries that are built and have not ended.

    A job that has `ran` (been RUNNING since its start) is degraded, and RUNNING, while some of its queries do what they
    should and others do not.
    """
    left = [(uid, shown) for uid, shown in queries if not shown.state.ended]
    if lifecycle.ended or lifecycle is State.FAILING or not left:
        return Shown(lifecycle)
    ill = [(uid, one) for uid, one in left if one.state not in HEALTHY or one.incident is not None]
    well = [one for uid, one in left if (uid, one) not in ill]
    if ill and well and ran:
        names = ", ".join(f"'{uid}' is {'stalled' if one.state in HEALTHY else one.state}" for uid, one in ill)
        return replace(_least(well), reason=f"degraded: {names}", since=None)
    return _least([shown for _, shown in left])


def _least(shown: list[Shown]) -> Shown:
    return min(shown, key=lambda one: (ORDER.index(one.state), one.incident is None))
