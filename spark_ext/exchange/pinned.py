"""What is in flight in an exchange at a savepoint, kept in a folder of it; and an exchange that is made from that.

exchange.json   the description of the exchange
log.json        the entries in flight, and the state of the log after them; see `inflight.py`
data/           the segments that these entries name

A kind whose segments are files links them, so a savepoint costs neither time nor space; others copy them. Either way it
keeps its rows when the exchange releases them. An exchange that is put back has the id of the one that it was, because
consumers' positions name it, in another job as well.

To put an exchange back in the place of another one, a restore first appends a claim to the log of that one, which keeps
older drivers out, then puts this one back into a folder beside it, and exchanges the folders. A driver that was frozen
through all this writes nothing into the new log, provided that `number` is greater than any entry of the old one.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from spark_ext.errors import StateError
from spark_ext.exchange.descriptor import Descriptor
from spark_ext.exchange.inflight import InFlightLog, in_flight, is_abandoned
from spark_ext.exchange.kinds import parts, parts_at
from spark_ext.exchange.place import ABOUT
from spark_ext.failpoints import FailPoint, reach
from spark_ext.storage import Location

if TYPE_CHECKING:
    from pathlib import Path

    from spark_ext.exchange.contract import ExchangeMaster
    from spark_ext.exchange.entries import Entry, LogState

LOG: Final = "log.json"
UNFINISHED: Final = ".being-put-back"
"""A file in the folder of an exchange while it is put back there: until it is gone, the folder may be emptied."""


@dataclass(frozen=True)
class Pinned:
    """The contents of such a folder."""

    about: Descriptor
    log: InFlightLog

    @property
    def files(self) -> tuple[str, ...]:
        """The names of its files, relative to the folder."""
        return (ABOUT, LOG, *(f"data/{segment.name}" for segment in self.log.segments))

    def write(self, folder: str) -> None:
        """Write all but the segments, which are there."""
        place = Location.of(folder, {}).folder
        place.write(ABOUT, self.about.to_json())
        place.write(LOG, self.log.to_json())


def pin(master: ExchangeMaster, place: str, first: int, end: int, folder: str) -> Pinned:
    """Keep what is in flight at a cut of the job. The exchange may be written, read and released meanwhile.

    `first` is the least entry that some consumer has not read in full at the cut; `end` is the number after the last
    one of the producer's part of it, not less than the entry of any consumer's position. What an earlier attempt has
    left in the folder is replaced.

    Raises:
        FileNotFoundError: an entry or its rows were released meanwhile: the cut is too old, and there is a newer one.
        ValueError: the log does not have these entries.
    """
    reach(FailPoint.EXCHANGE_BEFORE_PIN)
    about = master.describe()
    if about is None:
        raise FileNotFoundError(f"no exchange found at {place}")
    state = master.log.look()
    if not 0 <= first <= end <= state.last + 1:
        raise ValueError(f"{about.who} has entries up to {state.last}, and those from {first} to {end - 1} are wanted")
    if not state.released_rows:
        # What is released was abandoned or had no rows, so nobody misses it.
        first = min(max(first, state.released), end)
    log = in_flight(about.id, state, _entries(master, state, first, end, about.who), first, end)
    for segment in log.segments:
        master.keep(segment, folder)
        reach(FailPoint.EXCHANGE_SEGMENT_KEPT)
    pinned = Pinned(about, log)
    pinned.write(folder)
    reach(FailPoint.EXCHANGE_PINNED)
    return pinned


def _entries(master: ExchangeMaster, state: LogState, first: int, end: int, who: str) -> dict[int, Entry]:
    if end == 0:
        # The query that writes it was reset, and has not started since: what older lineages have written is released or
        # will be abandoned by its first start, and in neither case belongs to the cut.
        return {}
    if is_abandoned(state, end):
        raise FileNotFoundError(f"entries of {who} before entry {end} were abandoned since the cut of the job")
    found = {}
    for number in range(max(first, state.released) if not state.released_rows else first, state.last + 1):
        entry = master.log.entry(number) if number >= state.released else None
        if entry is not None:
            found[number] = entry
        elif number >= end and state.sealed is not None and state.sealed < end:
            continue  # what follows a seal has no rows
        elif state.passes_over(number) is None or number < state.released:
            raise FileNotFoundError(
                f"entry {number} of {who} is no longer there: it was released since the cut of the job"
            )
    return found


def read_pinned(folder: str, who: str) -> Pinned:
    """What is kept in a folder; StateError if it is incomplete, damaged, or of another exchange or a newer release."""
    named = f"{who}, savepoint at {folder}"
    about = Descriptor.from_json(_text(folder, ABOUT, named), named)
    log = InFlightLog.from_json(_text(folder, LOG, named), named)
    if log.exchange != about.id:
        raise _not_whole(f"{LOG} and {ABOUT} are of two exchanges", named)
    for segment in log.segments:
        size = _size(folder, f"data/{segment.name}")
        if size != segment.bytes:
            found = "is missing" if size is None else f"has {size} bytes instead of {segment.bytes}"
            raise _not_whole(f"the file of rows {segment.name} {found}", named)
    return Pinned(about, log)


def put_back(
    folder: str,
    target: str,
    *,
    number: int,
    lineage: int,
    job_id: str,
    who: str,
    given: tuple[str, Mapping[str, str]] | None = None,
) -> None:
    """Make an exchange from what `pin` has written. Repeated, also after a crash, it is made once.

    `given` is the kind that the job asks for, with its options, which replace those of an exchange of that kind.
    """
    reach(FailPoint.EXCHANGE_BEFORE_PUT_BACK)
    pinned = read_pinned(folder, who)
    state, entries = pinned.log.continued(number, lineage, time.time_ns() // 1_000_000)
    wanted = replace(pinned.about, job_id=job_id)
    if given is not None and given[0] == wanted.kind:
        wanted = replace(wanted, options=given[1])
    if _is_there(wanted, target, number, lineage, who):
        return
    place = Location.of(target, {})
    local = place.local
    if place.folder.find(ABOUT) is not None:
        # What an unfinished attempt has stored elsewhere is known by its folder alone.
        parts_at(target, who).master.delete()
    if local is not None:
        _empty(local)
    else:
        place.folder.delete_tree()
    master = parts(wanted.kind, target, who, wanted.options).master
    master.register(wanted)
    # As durable as those of any entry are before it is written.
    stored = {
        at: replace(entry, segments=tuple(master.put_back(segment, folder) for segment in entry.segments))
        for at, entry in entries.items()
    }
    reach(FailPoint.EXCHANGE_BEFORE_SEED)
    master.log.seed(state, stored, "0")
    if local is not None:
        (local / UNFINISHED).unlink(missing_ok=True)
    reach(FailPoint.EXCHANGE_PUT_BACK)


def _is_there(wanted: Descriptor, target: str, number: int, lineage: int, who: str) -> bool:
    """Whether an earlier attempt has put the exchange back; what it has not finished may be replaced."""
    local = Location.of(target, {}).local
    if local is not None and (not local.exists() or (local / UNFINISHED).exists()):
        return False
    master = parts_at(target, who).master
    about = master.describe()
    if about is None:
        if local is not None and any(local.iterdir()):
            raise _in_the_way(f"the folder {target} is not empty", who)
        return False
    state = master.log.look()
    if (about.id, about.job_id) != (wanted.id, wanted.job_id) or state.incarnation:
        which = "is in use" if state.incarnation else "is another one"
        raise _in_the_way(f"there is an exchange at {target} already, which {which}", who)
    return (state.last, state.lineage) == (number, lineage)


def _empty(folder: Path) -> None:
    """Begin in an empty folder, which is marked as unfinished from the first moment on."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / UNFINISHED).touch()
    for item in folder.iterdir():
        if item.is_dir():
            shutil.rmtree(item)
        elif item.name != UNFINISHED:
            item.unlink()


def _text(folder: str, name: str, who: str) -> str:
    try:
        return Location.of(folder, {}).folder.read(name).decode("utf-8", "replace")
    except FileNotFoundError:
        raise _not_whole(f"{name} is missing", who) from None


def _size(folder: str, name: str) -> int | None:
    with suppress(FileNotFoundError), Location.of(folder, {}).folder.open_input(name) as file:
        return int(file.size())
    return None


def _in_the_way(what: str, who: str) -> StateError:
    do = "put the exchange back into a folder that does not exist"
    return StateError(what, operator=who, kept="it is unchanged; nothing was put back", do=do)


def _not_whole(what: str, who: str) -> StateError:
    do = "restore the savepoint from a backup, or use another one; its files must not be changed by hand"
    kept = "the savepoint is unchanged; nothing was put back"
    return StateError(f"the savepoint of the exchange is not whole: {what}", operator=who, kept=kept, do=do)
