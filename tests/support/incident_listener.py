"""Listeners of the user's, for tests: they keep what they get in a list that is found by name."""

import json
import threading
from collections import defaultdict
from pathlib import Path
from typing import Final

from spark_ext.listeners.contract import (
    IncidentChange,
    IncidentListener,
    JobStateListener,
    LifecycleEvent,
    MetricsContext,
)

GOT: Final[dict[str, list[tuple[IncidentChange, MetricsContext]]]] = defaultdict(list)
GATES: Final[dict[str, threading.Event]] = {}  # a listener of such a name waits for its gate in each call


class Recorder(IncidentListener):
    def __init__(self, name: str) -> None:
        self._name = name

    def changed(self, change: IncidentChange, context: MetricsContext) -> None:
        if (gate := GATES.get(self._name)) is not None:
            gate.wait(120)
        GOT[self._name].append((change, context))


HAPPENED: Final[dict[str, list[tuple[LifecycleEvent, MetricsContext]]]] = defaultdict(list)


class States(JobStateListener):
    """Keeps all lifecycle events, counts them among the job's metrics, and appends them to a file if it gets one."""

    events = ("state", "source", "checkpoint", "job", "latency", "epoch")

    def __init__(self, name: str, file: str = "") -> None:
        self._name, self._file = name, file

    def happened(self, event: LifecycleEvent, context: MetricsContext) -> None:
        HAPPENED[self._name].append((event, context))
        context.count("events", label=event.kind.value)
        if self._file:
            with Path(self._file).open("a") as file:
                file.write(json.dumps(event.to_json()) + "\n")


class Raising(JobStateListener):
    def happened(self, event: LifecycleEvent, context: MetricsContext) -> None:
        raise RuntimeError("it always raises")
