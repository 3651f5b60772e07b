"""Named points of the protocols at which a test may kill or freeze the process. Off unless the environment asks.

`SPARK_EXT_FAILPOINTS="sink.committed=kill;final.recorded=kill#2"` kills the process with SIGKILL the first time it
passes `sink.committed`, and the second time it passes `final.recorded`. Actions:

- `kill`: SIGKILL to this process; `kill-driver`: SIGKILL to the driver's Python process (from a worker);
- `raise`: an OSError, once;
- `wait:FILE`: create `FILE.waiting`, then block until FILE exists.

The idea is that of FreeBSD's and TiKV's fail points. Without the variable a point costs one comparison.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from pathlib import Path

VARIABLE = "SPARK_EXT_FAILPOINTS"
DRIVER_PID = "SPARK_EXT_DRIVER_PID"
ONCE_DIR = "SPARK_EXT_FAILPOINTS_ONCE"
"""A folder; when given, a point acts once over all processes that share it, not once per process."""

_passed: Counter[str] = Counter()


def for_workers() -> dict[str, str]:
    """What the environment of Python workers needs, also on other machines: a test's fail points, and whom to kill."""
    asked = {name: os.environ[name] for name in (VARIABLE, ONCE_DIR) if name in os.environ}
    return {DRIVER_PID: str(os.getpid()), **asked}


def reach(point: str) -> None:
    """Pass the named point; does nothing unless the environment asks for something there."""
    wanted = os.environ.get(VARIABLE)
    if wanted:
        _act(point, wanted)


def _act(point: str, wanted: str) -> None:
    for item in wanted.split(";"):
        name, _, action = item.partition("=")
        if name != point:
            continue
        action, _, nth = action.partition("#")
        _passed[point] += 1
        if _passed[point] != int(nth or 1) or not _first_to_act(point):
            continue
        if action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif action == "kill-driver":
            os.kill(int(os.environ[DRIVER_PID]), signal.SIGKILL)
        elif action == "raise":
            raise OSError(f"fail point {point}")
        elif action.startswith("wait:"):
            gate = Path(action.removeprefix("wait:"))
            gate.with_name(gate.name + ".waiting").touch()
            while not gate.exists():
                time.sleep(0.01)
        else:
            raise ValueError(f"{VARIABLE}: unknown action {action!r} at {point}")


def _first_to_act(point: str) -> bool:
    folder = os.environ.get(ONCE_DIR)
    if folder is None:
        return True
    try:
        (Path(folder) / point).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
