"""The jobs that a server serves: per state directory the ledger, the history, the service and the audit."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from spark_ext.control.history import History
from spark_ext.control.known import KnownJob, Structure
from spark_ext.control.service import ControlService
from spark_ext.errors import SparkExtError
from spark_ext.ledger import Ledger
from spark_ext.masking import logger
from spark_ext.server.audit import Audit
from spark_ext.server.event_log import EventLog
from spark_ext.server.page_view import PageView
from spark_ext.server.problems import Problem
from spark_ext.storage import local_path

if TYPE_CHECKING:
    from spark_ext.ledger.schema import ControlRequestRow

log = logger("spark_ext.server")

POLL_EVERY: Final = 0.05  # how often a ledger is looked at while somebody waits for a change, s: a `stat` or two
RECALL: Final = 1.0  # how long a job's name is not looked up again, s: it keeps its name and directory
POLL_EVERY_REMOTE: Final = 1.0  # the same in an object store, where each look is a request


class ServedJob:
    """One job, which may be started later, by its state directory. Safe for several threads.

    `service` accepts its events; None: one of its own, from the first request on.
    """

    def __init__(
        self, state: str, storage_options: Mapping[str, str] | None = None, service: ControlService | None = None
    ) -> None:
        self.state = str(state).rstrip("/")
        self._options = dict(storage_options) if storage_options else None
        # Each with handles of its own: a read never waits for a commit.
        self.ledger = self._opened()
        self.history = History(self._opened())
        self.audit = Audit(self._opened())
        self._structure = Structure(self._opened())
        self._lock = threading.Lock()
        self._service, self._own = service, service is None
        self._page: PageView | None = None
        self.events = EventLog(lambda: self.page.facts(), self._sources)
        self.watcher = Watcher(self.history.poll, POLL_EVERY if local_path(self.state) else POLL_EVERY_REMOTE)

    def _opened(self) -> Ledger:
        return Ledger(self.state, self._options)

    def known(self) -> KnownJob:
        """The job as its ledger has it now."""
        with self._lock:
            return self._structure.poll()

    def _sources(self) -> Callable[[str], Collection[str]]:
        known = self.known()
        return lambda query: known.queries[query].sources if query in known.queries else ()

    @property
    def service(self) -> ControlService:
        """Accepts its events."""
        if self._service is not None:
            return self._service
        with self._lock:
            if self._service is None:
                self._service = ControlService(self._opened())
            return self._service

    @property
    def page(self) -> PageView:
        """What the web page shows of it; made when somebody looks at it."""
        with self._lock:
            if self._page is None:
                self._page = PageView(self._opened())
            return self._page

    def close(self) -> None:
        """End its threads; requests that wait are answered before."""
        with self._lock:
            service = self._service if self._own else None
        if service is not None:
            service.close()
        self.audit.close()


class ServedJobs:
    """All jobs of a server."""

    def __init__(self, jobs: Sequence[ServedJob]) -> None:
        self.all = tuple(jobs)
        self._found: dict[str, tuple[float, ServedJob, KnownJob]] = {}

    def recall(self, name: str) -> tuple[ServedJob, KnownJob] | None:
        """What `find` has returned for a name within the last second, without looking; None if there is nothing."""
        found = self._found.get(name)
        return found[1:] if found is not None and time.monotonic() - found[0] < RECALL else None

    def find(self, name: str) -> tuple[ServedJob, KnownJob]:
        """The job with a name or job id."""
        known = [(job, job.known()) for job in self.all]
        found = [(job, one) for job, one in known if name and name in (one.name, one.job_id)]
        if len(found) == 1:
            self._found[name] = (time.monotonic(), *found[0])
            return found[0]
        names = ", ".join(sorted({one.name for _, one in known if one.name})) or "none"
        if found:
            ids = ", ".join(one.job_id for _, one in found)
            raise Problem(409, "ambiguous", "several jobs have this name", f"use one of their ids: {ids}")
        raise Problem(404, "no_job", "this server has no such job", f"use one of: {names}", kept="nothing was accepted")

    def record(self, name: str, row: ControlRequestRow) -> None:
        """Put an audit row into the ledger of the job that the path names, else into that of the first job."""
        recalled = self.recall(name)
        if recalled is not None:
            recalled[0].audit.put(row)
            return
        for job in self.all:
            try:
                known = job.known()
            except SparkExtError:
                continue
            if name and name in (known.name, known.job_id):
                job.audit.put(row)
                return
        self.all[0].audit.put(row)

    def close(self) -> None:
        """End all threads."""
        for job in self.all:
            job.close()


class Watcher:
    """Says when a ledger may have changed, while somebody waits. For the event loop of the server."""

    def __init__(self, look: Callable[[], int], every: float) -> None:
        self._poll, self._every = look, every
        self._seen = -1
        self._changed = asyncio.Event()
        self._waiting = 0
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether the server is being stopped."""
        return self._closed

    async def seen(self) -> int:
        """The number of the newest state: hand it to `change`, after all that is known was read."""
        self._notice(await asyncio.to_thread(self._poll))
        return self._seen

    async def change(self, seen: int, seconds: float) -> int:
        """Wait until the number is another one, that many seconds are over, or the watcher is closed."""
        if self._seen != seen or self._closed or seconds <= 0:
            return self._seen
        self._waiting += 1
        try:
            if self._task is None or self._task.done():
                self._task = asyncio.get_running_loop().create_task(self._watch())
            await asyncio.wait_for(self._changed.wait(), seconds)
        except asyncio.TimeoutError:
            pass
        finally:
            self._waiting -= 1
        return self._seen

    def close(self) -> None:
        """Wake all who wait."""
        self._closed = True
        self._wake()

    def _notice(self, seen: int) -> None:
        if seen != self._seen:
            self._seen = seen
            self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _watch(self) -> None:
        pause = self._every
        while self._waiting and not self._closed:
            await asyncio.sleep(pause)
            try:
                self._notice(await asyncio.to_thread(self._poll))
                pause = self._every
            except SparkExtError as problem:
                # Those who wait read the ledger themselves when their time is over, and report it.
                pause = min(5.0, pause * 2)
                log.warning("could not read the ledger; will retry: %s", problem)
