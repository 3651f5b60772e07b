"""What chaos has to know of each sink.

Its options for a round, its rows as a reader sees them, what it may leave behind, its named steps, and the server that
it writes to.
"""

from __future__ import annotations

import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
from deltalake import DeltaTable

from tests.chaos.scenario import ROOT, Scenario, Server
from tests.chaos.sink_job import SCHEMA
from tests.chaos.verify import Content, leftovers
from tests.servers import receiver

UID = "copied"


class Outlet(ABC):
    """One sink and its server, for any number of rounds."""

    name: ClassVar[str]
    """The format."""
    starts: ClassVar[tuple[str, ...]]
    """Fail points of the claim, passed in the driver's own process."""
    commits: ClassVar[tuple[str, ...]]
    """Fail points of an epoch that are the sink's own, passed in workers."""
    server: Server | None = None

    @abstractmethod
    def options(self, out: Path) -> dict[str, str]:
        """Options of the sink in the round with this folder: a target of its own."""

    @abstractmethod
    def rows(self, out: Path) -> pa.Table:
        """What any reader of the round's target sees."""

    @abstractmethod
    def left(self, out: Path) -> list[str]:
        """What is prepared or staged and will never be visible, in words."""


class DeltaOutlet(Outlet):
    name = "delta_2pc"
    starts = ("delta.before_fence", "delta.fenced", "delta.cleaned")
    commits = ("delta.before_commit", "delta.committed")

    def options(self, out: Path) -> dict[str, str]:
        return {"path": str(out / "table")}

    def rows(self, out: Path) -> pa.Table:
        return DeltaTable(out / "table").to_pyarrow_table()

    def left(self, out: Path) -> list[str]:
        return leftovers("table", out / "table", UID, late_tasks=False)


class HttpOutlet(Outlet):
    """A receiver that keeps no more keys than it has to, for all rounds; a path of its own for each."""

    name = "http_2pc"
    starts = ("delta.before_fence", "http.fenced")
    commits = (
        "delta.before_commit",
        "http.decided",
        "http.before_request",
        "http.answered",
        "http.acknowledged",
        "http.before_settle",
        "http.settled",
    )

    def __init__(self, there: receiver.Receiver) -> None:
        self.server = self._receiver = there

    def options(self, out: Path) -> dict[str, str]:
        url = f"{self._receiver.url}/{out.name}"
        return {"url": url, "outbox": str(out / "outbox"), "batch_rows": "40"}

    def rows(self, out: Path) -> pa.Table:
        return pa.Table.from_pylist(receiver.rows(self._receiver.folder, out.name), SCHEMA)

    def left(self, out: Path) -> list[str]:
        # An epoch that was acknowledged leaves the outbox; a task that was repeated may leave a file of the last start.
        place = out / "outbox" / UID
        live = DeltaTable(place).file_uris()
        return [f"the outbox still holds {Path(uri).name}" for uri in live] + leftovers(
            "outbox", place, UID, late_tasks=False
        )


@contextmanager
def _delta(folder: Path) -> Iterator[Outlet]:
    yield DeltaOutlet()


@contextmanager
def _http(folder: Path) -> Iterator[Outlet]:
    with receiver.Receiver(folder / "receiver", memory="newest") as there:
        yield HttpOutlet(there)


OUTLETS: Mapping[str, Callable[[Path], object]] = {"delta_2pc": _delta, "http_2pc": _http}
"""How to open the outlet of each sink, with its server, in a folder."""


@dataclass(frozen=True)
class SinkScenario(Scenario):
    """The job of `sink_job` into one outlet."""

    outlet: Outlet | None = None

    @classmethod
    def of(cls, outlet: Outlet) -> SinkScenario:
        """Into this outlet."""
        script = ROOT / "tests" / "chaos" / "sink_job.py"
        return cls(outlet.name, script, None, {"copy": UID}, ("copy",), outlet.server, outlet)

    def _outlet(self) -> Outlet:
        assert self.outlet is not None
        return self.outlet

    def command(self, out: Path) -> list[str]:
        given = json.dumps(self._outlet().options(out))
        return [sys.executable, str(self.script), "--out", str(out), "--sink", self.name, "--options", given]

    def content(self, out: Path) -> dict[str, Content]:
        return {"copy": Content(self._outlet().rows(out).select(SCHEMA.names).cast(SCHEMA))}

    def leftovers(self, out: Path, *, late_tasks: bool) -> list[str]:
        return self._outlet().left(out)
