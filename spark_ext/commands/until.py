"""The options with which a run ends with what is there."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer


class UntilChoice(str, Enum):
    """When a run ends, other than with its input."""

    NOW = "now"


class EmitChoice(str, Enum):
    """What becomes of open windows."""

    CLOSED = "closed"
    ALL = "all"


class IfRunningChoice(str, Enum):
    """What is done while another run is under way."""

    REFUSE = "refuse"
    WAIT = "wait"


UntilOption = Annotated[
    UntilChoice | None,
    typer.Option("--until", help="With 'now' the run reads what every source holds when it begins, and ends."),
]
EmitOption = Annotated[
    EmitChoice,
    typer.Option(
        "--emit",
        help="With --until now: 'closed' leaves open windows to the next run; 'all' emits them and ends the job.",
    ),
]
IfRunningOption = Annotated[
    IfRunningChoice | None,
    typer.Option("--if-running", help="While another run of the job is under way: refuse, or wait for its end."),
]
WaitOption = Annotated[
    float | None,
    typer.Option("--wait-timeout", metavar="SECONDS", help="With --if-running wait: for how long; else for any time."),
]
