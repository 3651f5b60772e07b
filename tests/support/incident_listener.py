"""An incident listener of the user's, for tests: keeps what it gets in a list that is found by name."""

import threading
from collections import defaultdict
from typing import Final

from spark_ext.listeners.contract import IncidentChange, IncidentListener, MetricsContext

GOT: Final[dict[str, list[tuple[IncidentChange, MetricsContext]]]] = defaultdict(list)
GATES: Final[dict[str, threading.Event]] = {}  # a listener of such a name waits for its gate in each call


class Recorder(IncidentListener):
    def __init__(self, name: str) -> None:
        self._name = name

    def changed(self, change: IncidentChange, context: MetricsContext) -> None:
        if (gate := GATES.get(self._name)) is not None:
            gate.wait(120)
        GOT[self._name].append((change, context))
