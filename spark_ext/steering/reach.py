"""How a job is reached: through its state directory or a server; and what can be seen of it from there."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from spark_ext.control.client import LocalClient
from spark_ext.control.http_client import ControlClient
from spark_ext.control.known import KnownJob
from spark_ext.errors import NOTHING_DONE, ConfigurationError
from spark_ext.ledger import Ledger
from spark_ext.model.control_kinds import kinds as known_kinds
from spark_ext.model.query_offsets import source_offsets
from spark_ext.spark.logs.spark_log import SparkLog
from spark_ext.storage import child, local_path

if TYPE_CHECKING:
    from spark_ext.control.client import Client
    from spark_ext.model.offsets import Json

TOKEN: Final = "SPARK_EXT_TOKEN"
"""Environment variable with the token of a server."""

_JOB: Final = "/v1/jobs/"


@dataclass(frozen=True)
class ChannelPosition:
    """Where a channel stands."""

    query: str
    epoch: int
    """Newest epoch that was planned."""
    position: Json
    """Where the next one begins, unless a seek comes before it."""


class Reach:
    """A job from here: `where` is its state directory or URL; it has no ledger if only a server has it."""

    def __init__(self, client: Client, where: str, ledger: Ledger | None = None) -> None:
        self.client, self.where = client, where
        self._ledger = ledger

    def kinds(self) -> list[dict[str, Any]]:
        """The kinds of events that may be sent."""
        if isinstance(self.client, ControlClient):
            return self.client.kinds()
        return [kind.described() for kind in known_kinds().values() if kind.public]

    def sources(self) -> tuple[str, ...]:
        """Uids of the job's channel sources."""
        if self._ledger is not None:
            queries: Any = [query.sources for query in KnownJob.read(self._ledger).queries.values()]
        else:
            assert isinstance(self.client, ControlClient)
            queries = [query["sources"] for query in self.client.summary()["queries"]]
        return tuple(sorted({uid for sources in queries for uid in sources}))

    def runs(self) -> bool | None:
        """Whether the job's newest start runs; None: unknown, as its driver is on another host."""
        if self._ledger is not None:
            return KnownJob.read(self._ledger).running
        assert isinstance(self.client, ControlClient)
        found: bool | None = self.client.summary()["running"]
        return found

    def place(self, source: str, channel: str) -> ChannelPosition | None:
        """Where a channel stands, by the newest offsets of its query; None: it does not run, or they cannot be read."""
        if self._ledger is None:
            return None
        for uid, query in KnownJob.read(self._ledger).queries.items():
            if source not in query.sources:
                continue
            log = SparkLog(child(self._ledger.uri, "queries", uid, "checkpoint"))
            try:
                epoch = log.newest_offsets()
                logged = None if epoch is None else log.offsets(epoch)
            except (OSError, ValueError):
                return None
            offset = None if logged is None else source_offsets(logged).get(source)
            running = None if offset is None else offset.running.get(channel)
            if logged is not None and running is not None:
                return ChannelPosition(uid, logged.epoch, running.at)
        return None


def is_url(where: str) -> bool:
    """Whether this is the address of a server, and not of a state directory."""
    return where.startswith(("http://", "https://"))


def connect(
    where: str,
    token: str | None = None,
    *,
    storage_options: Mapping[str, str] | None = None,
    requested_by: str = "",
    origin: str = "python",
    verify: str | None = None,
) -> Reach:
    """Reach a job.

    Args:
        where: path or URI of the state directory; or URL of a server, with `/v1/jobs/NAME` if it has several jobs.
        token: of the server; None: the environment variable `SPARK_EXT_TOKEN`.
    """
    if is_url(where):
        return _served(where, token or os.environ.get(TOKEN, ""), verify)
    place = local_path(where)
    state = where.rstrip("/") if place is None else str(place.expanduser().resolve())
    client = LocalClient(state, storage_options, requested_by=requested_by, origin=origin)
    return Reach(client, state, Ledger(state, dict(storage_options) if storage_options else None))


def _served(where: str, token: str, verify: str | None) -> Reach:
    parts = urlsplit(where)
    path = parts.path.rstrip("/")
    job = unquote(path.removeprefix(_JOB)) if path.startswith(_JOB) else None
    if parts.username is not None or parts.query or parts.fragment or (path and (job is None or "/" in job)):
        # The address is not quoted: somebody may have put the token into it.
        raise _refused(
            "the address of the server has parts that it may not have", "write https://HOST:PORT/v1/jobs/NAME"
        )
    base = f"{parts.scheme}://{parts.netloc}"
    if not token:
        raise _refused("no token for the server", f"set the environment variable {TOKEN}, or give a token file")
    return Reach(ControlClient(base, token, job, verify=verify), f"{base}{path}")


def _refused(what: str, do: str) -> ConfigurationError:
    return ConfigurationError(what, operator="the client of control events", kept=NOTHING_DONE, do=do)
