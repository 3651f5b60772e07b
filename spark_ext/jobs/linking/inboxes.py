"""The inboxes of a running job: registered at its start, released as the job commits, and watched for silent gateways.

An entry of a gateway's log is released once nobody needs it again: every source that reads the inbox has committed it,
in every cut of the job that can still be restored, and what was committed would survive a power failure.

Spark and delta-rs sync no files: after a power failure an epoch that Spark counts as committed may lack its data files,
its entry in the table's log, the files of its state, or Spark's own record of it. The gateway's log is then the only
place that has its events. So before a release all this is made durable, by one sync of each file system on which the
job's state directory and the outputs of its queries are, about once a second. Commits of epochs are between two such
syncs (`EpochWriter`): no table names files that are gone. An object store is durable when it answers. What a sink of
Spark's own or of the user's keeps elsewhere than under its option `path` is up to that sink.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from spark_ext.checkpoints.savepoint import MANIFEST, retained_folder
from spark_ext.failpoints import FailPoint, reach
from spark_ext.ingest.description import GAPS
from spark_ext.ingest.log import InboxLog, channels
from spark_ext.ingest.place import InboxPlace
from spark_ext.jobs.linking.inbox_figures import SOURCE, GatewayLook, LeftOut, summed
from spark_ext.jobs.linking.leases import LeaseWatch, filling_of
from spark_ext.ledger.schema import CheckpointRow, IncidentRow
from spark_ext.ledger.view import SourceView
from spark_ext.model.checkpoint_metadata import CheckpointMetadata
from spark_ext.model.query_offsets import source_offsets
from spark_ext.options import written_to
from spark_ext.spark.backend.kinds import backend_of
from spark_ext.storage import Location, sync_systems, writer_of

if TYPE_CHECKING:
    from spark_ext.checkpoints.unaligned import Held, Taken
    from spark_ext.ingest.description import InboxDescription
    from spark_ext.jobs.execution_graph import ExecutionGraph
    from spark_ext.model.cut import Cut
    from spark_ext.model.offsets import SourceOffset
    from spark_ext.queries.context import JobContext
    from spark_ext.queries.run import QueryRun
    from spark_ext.queries.spec import QuerySpec

LOOK_EVERY: Final = 5.0  # pause between two looks at the leases of gateways, s
SILENT: Final = "gateway_silent"
CLOCK: Final = "gateway_clock"
FILLING: Final = "inbox_filling"
GAP: Final = "feed_gap"
OVER: Final = {
    SILENT: "is heard of again, or its log is sealed",
    CLOCK: "has a clock that agrees with the driver's, or its log is sealed",
    FILLING: "has room again",
}
"""Types of incidents about gateways, and when they are over."""
EVERYTHING: Final = 1 << 62  # a position behind all that a sealed log will ever have


@dataclass(frozen=True)
class InboxLink:
    """An inbox of the job, and the sources that are declared to read it."""

    name: str
    path: str
    readers: frozenset[str]  # uids, also those of queries that are not built yet
    wanted: Callable[[str], InboxDescription] | None = None  # by the job's id; None: it is read by its path alone


@dataclass(frozen=True)
class Positions:
    """How far one source has read the gateways of an inbox: the entries in which it stands."""

    at: Mapping[str, int]
    ended: bool = False

    @classmethod
    def by(cls, offset: SourceOffset | None, finished: Callable[[int], Mapping[str, Any]]) -> Positions:
        """By an offset; None: before its first epoch. `finished` knows the channels whose flags are in the ledger."""
        if offset is None:
            return cls({})
        known = finished(offset.confirmed) if offset.confirmed else {}
        ends = dict.fromkeys((*known, *(finish.channel for finish in offset.finished)), EVERYTHING)
        return cls({**ends, **{name: int(state.at[0]) for name, state in offset.running.items()}}, offset.ended)

    def of(self, gateway: str) -> int:
        """The entry of a gateway below which it needs none; 0: it has not started with it."""
        return EVERYTHING if self.ended else self.at.get(gateway, 0)


class Inboxes:
    """For the worker that releases exchanges and pins savepoints, so that none of the two disturbs the other."""

    def __init__(self, context: JobContext, execution: ExecutionGraph, links: Sequence[InboxLink]) -> None:
        self.links = tuple(links)
        self._context, self._execution = context, execution
        self._places = {link.name: InboxPlace(link.path, self._who(link)) for link in links}
        self._left_out = {name: LeftOut(place) for name, place in self._places.items()}
        self._logs: dict[tuple[str, str], InboxLog] = {}
        self._watches: dict[tuple[str, str], LeaseWatch] = {}
        self._released: dict[tuple[str, str], tuple[int, int]] = {}
        self._views: dict[tuple[str, int], SourceView] = {}
        self._held: dict[str, CheckpointMetadata] | None = None  # by the folder of a savepoint
        self._open: dict[tuple[str, str, str], str] | None = None  # incidents about gateways: inbox, gateway, type
        self._looked_at = -LOOK_EVERY
        self._durable: Cut | None = None  # the newest cut whose epochs were synced

    def _who(self, link: InboxLink) -> str:
        return f"job '{self._context.job}', inbox '{link.name}'"

    # -- the start ----------------------------------------------------------------------------------------------------

    def register(self, drained: Callable[[int], bool]) -> None:
        """Register all inboxes, and let gateways accept again unless a query that reads one is drained."""
        if any(link.wanted is not None for link in self.links):
            # Without the ledger, which has the job's id, an inbox belongs to nobody.
            sync_systems({self._context.state})
        for link in self.links:
            place = self._places[link.name]
            if link.wanted is None:
                place.refuse_other(self._context.job_id)
            else:
                place.register(link.wanted(self._context.job_id))
            if not any(drained(run.lineage) for run in self._runs(link)):
                place.reopen()

    def _runs(self, link: InboxLink) -> list[QueryRun]:
        return [run for run in self._execution.runs if readers_of(run.spec, link.path)]

    # -- release ------------------------------------------------------------------------------------------------------

    def hold(self, folder: str, metadata: CheckpointMetadata) -> None:
        """A savepoint was taken: as long as it is there, nothing that a restore needs is released."""
        if self.links:
            self._known_savepoints()[folder] = metadata

    def _known_savepoints(self) -> dict[str, CheckpointMetadata]:
        if self._held is None:
            table = self._context.write_behind.ledger.table(CheckpointRow)
            rows = table.read(["checkpoint_id", "path"], [("query", "=", ""), ("status", "=", "COMPLETED")]).to_pylist()
            paths = {row["checkpoint_id"]: self._moved(row["path"]) for row in rows if row["path"]}
            there = {number: path for number, path in paths.items() if _is_there(path)}
            named = [("status", "=", "COMPLETED"), ("query", "=", ""), ("checkpoint_id", "in", sorted(there))]
            kept = table.rows(named) if there else []
            self._held = {there[row.checkpoint_id]: CheckpointMetadata.from_json(row.metadata) for row in kept}
        return self._held

    def _moved(self, path: str) -> str:
        """Where a savepoint is: a retained checkpoint is in the state directory, which may have been moved."""
        place, _, number = path.rpartition("/")
        root = retained_folder(self._context.state)
        return f"{root}/{number}" if place.rpartition("/")[2] == root.rpartition("/")[2] else path

    def release(self, taken: Taken, held: Held) -> None:
        """Release what lies before a cut, before offsets that are held, and before all savepoints."""
        due = [
            (link, gateway, found)
            for link in self.links
            for gateway, found in self._bounds(link, taken, held)
            if found != self._released[link.name, gateway]
        ]
        # An exchange forgets what is behind the cut as well, and is released next.
        if not self.links or (not due and taken.cut == self._durable):
            return
        reach(FailPoint.INBOX_BEFORE_SYNC)
        sync_systems({self._context.state, *(path for run in self._execution.runs for path in outputs(run.spec))})
        self._durable = taken.cut
        reach(FailPoint.INBOX_BEFORE_RELEASE)
        for link, gateway, found in due:
            log, (_, kept) = self._log(link, gateway), found
            log.release(*found)
            self._released[link.name, gateway] = found
            if log.look().sealed is not None:
                log.delete(kept)  # the gateway may have ended for good

    def _bounds(self, link: InboxLink, taken: Taken, held: Held) -> Iterator[tuple[str, tuple[int, int]]]:
        """Each gateway, and below which entries of its log are released, and may be deleted: never less than before."""
        readers = {uid: run for run in self._execution.runs for uid in readers_of(run.spec, link.path)}
        late = bool(self._execution.waiting) and not link.readers <= readers.keys()
        if late or not readers or not {run.uid for run in readers.values()} <= taken.cut.points.keys():
            return  # nobody reads it yet, or not everybody
        positions = [one for uid, run in readers.items() for one in self._positions(uid, run, taken, held)]
        for gateway in channels(self._places[link.name].folder):
            log = self._log(link, gateway)
            released, kept = self._released.setdefault((link.name, gateway), (log.released(), log.kept()))
            # After a restore it is before what has been released.
            at = min((log.look().last + 1, *(one.of(gateway) for one in positions)))
            yield gateway, (max(released, at), kept if kept >= at else max(kept, min(at, self._kept(readers, gateway))))

    def _positions(self, uid: str, run: QueryRun, taken: Taken, held: Held) -> Iterator[Positions]:
        """From where a restore or a restart of a query may read; nowhere if it has finished."""
        offsets = [] if taken.cut.points[run.uid].finished else [taken.offsets[run.uid]]
        for logged in (*offsets, *([held[run.uid]] if run.uid in held else [])):
            offset = None if logged is None else source_offsets(logged).get(uid)
            yield Positions.by(offset, partial(self._finished, uid, run.lineage))

    def _kept(self, readers: Mapping[str, QueryRun], gateway: str) -> int:
        """The entry of a gateway from which savepoints and retained checkpoints need all."""
        least = EVERYTHING
        for folder, metadata in [*self._known_savepoints().items()]:
            # What had finished by then, and is known by a flag alone, counts as needed: lineages may have changed.
            needed = [
                Positions.by(part.sources[uid].offset, lambda upto: {}).of(gateway)
                for part in metadata.queries.values()
                if not part.finished
                for uid in part.sources.keys() & readers.keys()
            ]
            if needed and min(needed) < least:
                if _is_there(folder):
                    least = min(needed)
                else:
                    del self._known_savepoints()[folder]
        return least

    def _finished(self, uid: str, lineage: int, upto: int) -> Mapping[str, Any]:
        key = uid, lineage
        if key not in self._views:
            self._views[key] = SourceView(self._context.state, uid, lineage)
        return self._views[key].finished_channels(upto)

    def _log(self, link: InboxLink, gateway: str) -> InboxLog:
        key = link.name, gateway
        if key not in self._logs:
            self._logs[key] = self._places[link.name].log(gateway)
        return self._logs[key]

    # -- gateways -----------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Count what has come, and report gateways that are half full, or silent: nobody may be there to seal them."""
        if time.monotonic() < self._looked_at + LOOK_EVERY:
            return
        self._looked_at = time.monotonic()
        if self._open is None:  # an earlier start may have left some
            left = [one.incident for one in self._context.write_behind.incidents.open("") if one.incident.type in OVER]
            self._open = {(one.labels["inbox"], one.labels["gateway"], one.type): one.incident_id for one in left}
        for link in self.links:
            place = self._places[link.name]
            draining, found = place.draining, []
            for gateway in channels(place.folder):
                key, log = (link.name, gateway), self._log(link, gateway)
                if key not in self._watches:
                    self._watches[key] = LeaseWatch(place.gateway(gateway), time.monotonic, time.time)
                watch = self._watches[key]
                watch.look()
                sealed, lease = log.look().sealed is not None, watch.lease
                known = (*key, SILENT) in self._open
                silence = None if sealed else watch.silence(draining=draining, known=known)
                found.append(GatewayLook.at(lease, log, silent=silence is not None, age=watch.age))
                kept = "; the job does not finish before its log is sealed" if draining else ""
                self._tell(
                    link,
                    gateway,
                    SILENT,
                    None if silence is None else f"is silent: {silence}{kept}",
                    f"start it again; if it is gone for good, run: spark-ext ingest seal STATE {link.name} {gateway}",
                )
                error = "" if sealed else watch.clock_error()
                if error is not None:
                    self._tell(
                        link,
                        gateway,
                        CLOCK,
                        error or None,
                        "synchronize both machines: received_at and the window of repeats follow the gateway's clock",
                    )
                known = (*key, FILLING) in self._open
                self._tell(
                    link,
                    gateway,
                    FILLING,
                    filling_of(lease, known=known),
                    "see whether the query keeps up, or raise max_bytes of the inbox; a full gateway answers 429",
                )
            shown = summed(link.name, found, self._left_out[link.name].look(), time.time_ns() // 1_000_000)
            for run in self._runs(link):
                run.figures.arrived(shown)
            self._tell_gaps(link)

    def _tell(self, link: InboxLink, gateway: str, type_: str, what: str | None, action: str) -> None:
        """Open an incident about a gateway; `what`: None if it is over, or is none."""
        incidents, key, who = self._context.write_behind, (link.name, gateway, type_), f"gateway '{gateway}'"
        assert self._open is not None
        if what is None:
            known = self._open.pop(key, None)
            if known is not None:
                incidents.incidents.resolve(known, f"{who} {OVER[type_]}")
        elif key not in self._open:
            self._open[key] = incidents.incident(
                self._who(link),
                type_,
                f"{who} of inbox '{link.name}' {what}",
                action,
                labels={"inbox": link.name, "gateway": gateway},
            )

    def _tell_gaps(self, link: InboxLink) -> None:
        """Report for which times feeds may have lost messages, each once, and delete what the ledger then has."""
        folder, behind = self._places[link.name].folder.below(GAPS), self._context.write_behind
        names = [name for name in folder.names() if writer_of(name) is None]
        if not names:
            return
        found = [("type", "=", GAP), ("operator", "=", self._who(link)), ("fingerprint", "in", names)]
        told = behind.ledger.table(IncidentRow).read(["fingerprint"], found)["fingerprint"].to_pylist()
        for name in sorted({*names}.difference(told)):
            gateway, text = name.rpartition("-")[0], folder.find(name)
            if text is not None:
                behind.incident(
                    self._who(link),
                    GAP,
                    f"the feed of gateway '{gateway}' {gap_of(text)}",
                    "get the messages of that time from the feed's owner, or mark it in what is made of them",
                    labels={"inbox": link.name, "gateway": gateway},
                    fingerprint=name,
                )
        behind.write_now([])
        for name in names:
            folder.delete(name)


def gap_of(text: bytes) -> str:
    """What a gateway has recorded of a gap, as text."""
    try:
        found = json.loads(text)
        since, to = (datetime.fromtimestamp(found[one] / 1e6, timezone.utc).isoformat() for one in ("from", "to"))
        return f"was not connected from {since} to {to}, and messages may be missing: {found['reason']}"
    except (ValueError, KeyError, TypeError, OverflowError):
        return "was not connected for a time that cannot be read, and messages may be missing"


def readers_of(spec: QuerySpec, path: str) -> frozenset[str]:
    """The sources of a query that read an inbox."""
    return frozenset(uid for uid, options in inboxes_of(spec) if options["path"] == path)


def inboxes_of(spec: QuerySpec) -> Iterator[tuple[str, dict[str, str]]]:
    """The sources of a query that read inboxes, with their options."""
    for source in spec.sources:
        if source.format.lower() == SOURCE:
            options = {name.lower(): value for name, value in source.options.items()}
            yield source.uid, {**options, "path": options.get("path", "").rstrip("/")}


def outputs(spec: QuerySpec) -> Iterator[str]:
    """Where a query writes, as its operators' options say."""
    for operator in spec.operators:
        yield from written_to(operator.options, sink=operator is spec.sink)
    if spec.sink is None and (target := backend_of(spec.writer).target(spec.writer)).options.get("path"):
        yield target.options["path"]


def _is_there(savepoint: str) -> bool:
    return Location.of(savepoint, {}).folder.has(MANIFEST)
