"""An inbox's folder, as jobs and planners use it: the description, the gateways in it, and a drain."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from spark_ext.errors import ConfigurationError, refused
from spark_ext.ingest.description import ABOUT, DECISIONS, DRAIN, GATEWAYS, InboxDescription
from spark_ext.ingest.log import InboxLog
from spark_ext.storage import Location

if TYPE_CHECKING:
    from spark_ext.storage import Folder

FOLDER: Final = "inboxes"


def inbox_path(state: str, name: str) -> str:
    """The folder of an inbox in the state directory of its job."""
    return f"{state.rstrip('/')}/{FOLDER}/{name}"


def inbox_of(path: str, state: str) -> str | None:
    """The name of the inbox in a folder of a job's state directory; None for any other path."""
    place, _, name = path.rstrip("/").rpartition("/")
    return name if place == f"{state.rstrip('/')}/{FOLDER}" and name else None


class InboxPlace:
    """The folder of one inbox, which need not exist."""

    def __init__(self, path: str, operator: str, storage_options: Mapping[str, str] = MappingProxyType({})) -> None:
        self.path, self.operator, self._storage_options = path.rstrip("/"), operator, storage_options

    @cached_property
    def folder(self) -> Folder:
        """The folder itself."""
        return Location.of(self.path, self._storage_options).folder

    @property
    def name(self) -> str:
        """The inbox's name."""
        return self.path.rpartition("/")[2]

    # -- the description ----------------------------------------------------------------------------------------------

    def find(self) -> InboxDescription | None:
        """Its description; None if it was never registered."""
        text = self.folder.find(ABOUT)
        if text is None:
            return None
        found = InboxDescription.from_json(text.decode("utf-8", "replace"), self.operator)
        return found.in_folder(self.name, self.operator)

    def description(self) -> InboxDescription:
        """Its description; refuses a folder without one."""
        found = self.find()
        if found is None:
            raise refused(
                "the inbox does not exist: its folder contains no description",
                self.operator,
                "start the job first: its first start makes its inboxes; or correct the path or the name",
            )
        return found

    def register(self, wanted: InboxDescription) -> InboxDescription:
        """Write the description as a job wants it now; the inbox keeps the id that it was made with.

        Raises:
            ConfigurationError: it belongs to another job.
        """
        if self.find() is None and self.folder.create_once(ABOUT, wanted.to_json(), durable=True):
            return wanted
        there = self.description()
        merged = there.merged(wanted)
        if merged != there:
            self.folder.write(ABOUT, merged.to_json(), durable=True)
        return merged

    def refuse_other(self, job_id: str) -> InboxDescription:
        """Refuse a job that the inbox does not belong to; returns the description."""
        found = self.description()
        if found.job_id != job_id:
            raise ConfigurationError(
                "the inbox belongs to another job: what this one commits would not count as read",
                operator=self.operator,
                kept="the inbox is unchanged; nothing was read",
                do="read it in the job that registers it; between jobs, use a table",
            )
        return found

    # -- a drain ------------------------------------------------------------------------------------------------------

    def drain(self, start: int) -> None:
        """Ask all gateways to seal their logs; `start` is the incarnation of the job that asks."""
        if not self.draining:
            self.folder.create_once(DRAIN, json.dumps({"start": start, "at": time.time_ns() // 10**6}), durable=True)

    @property
    def draining(self) -> bool:
        """Whether gateways were asked to seal their logs."""
        return self.folder.has(DRAIN)

    def reopen(self) -> None:
        """The job starts, and is not drained: gateways may accept again."""
        self.folder.delete(DRAIN)

    # -- what others keep here ----------------------------------------------------------------------------------------

    def gateway(self, name: str) -> Folder:
        """The folder of a gateway."""
        return self.folder.below(f"{GATEWAYS}/{name}")

    def log(self, gateway: str) -> InboxLog:
        """The log of a gateway."""
        return InboxLog(self.gateway(gateway), f"{self.operator}, gateway '{gateway}'")

    @property
    def decisions(self) -> Folder:
        """Where it is kept which events are repeats."""
        return self.folder.below(DECISIONS)
