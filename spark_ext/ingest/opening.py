"""Which channel a gateway has, and how a process comes to own it.

    <inbox>/gateways/<channel>/gateway.json    what the channel is, written once
    <wal>/<channel>/owner.json                 the channel that this write-ahead log belongs to

A channel either has a write-ahead log from its first start to its seal, or never: an inbox whose acknowledgement
changes seals its channels, and gateways begin new ones.
"""

from __future__ import annotations

import re
from itertools import count
from pathlib import Path
from typing import Final

from spark_ext.errors import StateError, refused
from spark_ext.ingest.channel import OwnedChannel
from spark_ext.ingest.description import GATEWAYS, InboxDescription, new_id
from spark_ext.ingest.log import ABOUT, ChannelAbout, InboxLog, LogState
from spark_ext.ingest.wal import WriteAheadLog
from spark_ext.storage import Folder, LocalFolder

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_KEPT: Final = "the gateway's log and its write-ahead log are unchanged; nothing was started"


def open_channel(
    description: InboxDescription, inbox: Folder, wal: Path, gateway: str, *, begin: bool
) -> OwnedChannel | None:
    """Own the channel of a gateway that is not sealed, with all that was acknowledged in its log.

    Without such a channel a new one is begun, unless `begin` is false: then the result is None.
    """
    if not _NAME.fullmatch(gateway):
        what = f"'{gateway}' cannot be a gateway's name: it has other characters than letters, digits, `_`, `.` and `-`"
        raise refused(what, description.operator, "choose another name", kept="nothing was started")
    ahead = description.ack != "store" and description.persist == "continuous"
    for number in count(1):
        name = gateway if number == 1 else f"{gateway}~{number}"
        place = _Place(description, inbox.below(f"{GATEWAYS}/{name}"), LocalFolder(wal / name), name)
        if place.state().sealed is not None:
            continue
        about = place.about()
        if about is None and not begin:
            return None
        channel = place.own(about.wal if about is not None else ahead)
        if about is None or about.wal == ahead:
            return channel
        try:
            channel.seal()
        finally:
            channel.close()
    raise AssertionError


def seal(description: InboxDescription, inbox: Folder, wal: Path, gateway: str, *, accept_loss: bool) -> LogState:
    """Seal the log of a gateway that does not run any more, after what its write-ahead log still has.

    Returns:
        The log's state: `lost_after` is the last sequence saved if a loss was accepted.

    Raises:
        SparkExtError: the write-ahead log is not there or damaged, and `accept_loss` is false.
    """
    names = sorted(
        (name for name in inbox.names(GATEWAYS) if name.partition("~")[0] == gateway),
        key=lambda name: int(name.partition("~")[2] or 1),
    )
    if not names:
        raise refused("the inbox has no gateway of this name", description.operator, "check the name", kept=_KEPT)
    name = names[-1]
    place = _Place(description, inbox.below(f"{GATEWAYS}/{name}"), LocalFolder(wal / name), name)
    state = place.state()
    about = place.about()
    if state.sealed is not None or about is None:
        return state
    lost = False
    try:
        channel = place.own(about.wal)
    except StateError:
        if not accept_loss:
            raise
        channel, lost = place.own(about.wal, accept_loss=True), True
    try:
        channel.seal(lost=lost)
        return channel.state
    finally:
        channel.close()


class _Place:
    """Where a channel is."""

    def __init__(self, description: InboxDescription, folder: Folder, wal: LocalFolder, name: str) -> None:
        self._description, self._folder, self._wal, self._name = description, folder, wal, name
        self._who = f"gateway '{name}' of {description.operator}"

    def state(self) -> LogState:
        return InboxLog(self._folder, self._who).look()

    def about(self) -> ChannelAbout | None:
        content = self._folder.find(ABOUT)
        return None if content is None else ChannelAbout.from_json(content, self._who)

    def own(self, wal: bool, *, accept_loss: bool = False) -> OwnedChannel:
        """Claim the channel and recover what its write-ahead log has; a new channel is registered first."""
        ahead = WriteAheadLog(self._wal, self._who) if wal else None
        try:
            if not self._belongs(ahead, accept_loss) and ahead is not None:
                ahead.close()
                ahead = None
            channel = OwnedChannel(
                self._folder, self._name, self._description.id, ahead, self._who, self._description.ack != "none"
            )
            channel.claim(accept_loss=accept_loss)
            channel.recover(accept_loss=accept_loss)
        except BaseException:
            if ahead is not None:
                ahead.close()
            raise
        return channel

    def _belongs(self, ahead: WriteAheadLog | None, accept_loss: bool) -> bool:
        """Register a new channel, and refuse folders that do not belong together, unless that is accepted."""
        about, owner = self.about(), ahead.owner() if ahead is not None else None
        if about is None:
            owner = owner or new_id()
            if ahead is not None:
                # First: a crash after it leaves a log of a channel that does not exist yet.
                ahead.belong(owner)
            wanted = ChannelAbout(owner, self._name, self._description.id, ahead is not None)
            self._folder.create_once(ABOUT, wanted.to_json(), durable=True)
            about = self.about()
            assert about is not None
        if (about.name, about.inbox) != (self._name, self._description.id):
            raise self._refused(
                f"its folder is that of gateway '{about.name}' of the inbox with the id {about.inbox}: it was copied",
                "remove the copy, or start the gateway under a name of its own",
            )
        if ahead is not None and owner != about.id and not accept_loss:
            found = "is empty" if owner is None else "is that of another gateway"
            raise self._refused(
                f"the write-ahead log {self._wal.path} {found}, and this gateway has begun with one already; the last "
                f"event that is saved has sequence {self.state().total - 1}",
                "start the gateway with the volume that it used last; if that is lost, accept the loss of later "
                "events: spark-ext ingest seal --accept-loss",
            )
        return owner == about.id

    def _refused(self, what: str, do: str) -> StateError:
        return StateError(what, operator=self._who, kept=_KEPT, do=do)
