"""What a restore puts in place: Spark's checkpoints, the exchanges, and the bad rows."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from spark_ext.bad_rows.restored import BadRowsOfJob, Cut
from spark_ext.checkpoints.savepoint import UNCHANGED, exchange_folder, query_folder
from spark_ext.errors import RESET, StateError
from spark_ext.exchange import decisions
from spark_ext.exchange.kinds import parts_at
from spark_ext.exchange.pinned import UNFINISHED, read_pinned
from spark_ext.ingest.log import channels
from spark_ext.ingest.place import InboxPlace
from spark_ext.jobs.linking.inboxes import Positions, inboxes_of
from spark_ext.jobs.restoring.reshaped_exchanges import ReshapedExchanges, delete_drafts
from spark_ext.jobs.restoring.restore_targets import REPLACED
from spark_ext.ledger.schema import BadRowsRow
from spark_ext.queries.context import checkpoint_of
from spark_ext.spark.logs.checkpoint_directory import put_in_place
from spark_ext.spark.logs.epoch_files import STAMPS
from spark_ext.spark.logs.spark_log import SparkLog, with_offsets
from spark_ext.spark.logs.state_operators import relocate
from spark_ext.spark.logs.state_partitions import repartition
from spark_ext.storage import Location, child, link, local_path, move

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_ext.exchange.contract import ExchangeMaster
    from spark_ext.jobs.composition import Composition
    from spark_ext.jobs.restoring.restore_checks import Comparison
    from spark_ext.ledger import Ledger
    from spark_ext.model.checkpoint_metadata import QueryMetadata
    from spark_ext.model.commits import FenceMark
    from spark_ext.model.lineages import Lineages
    from spark_ext.model.offsets import SourceOffset
    from spark_ext.queries.spec import QuerySpec

DRAFTS: Final = "restoring"  # the folder of a state directory in which checkpoints are prepared; deleted afterwards


def clear_away(state: str, lineage: int, *, again: bool) -> None:
    """Leave nothing where the checkpoints and exchanges of a savepoint are going to be.

    On a file system what is there is moved aside. On an object store only the history of a new job begins with a
    restore: what is there was left by one that was interrupted before (`again`), perhaps of another savepoint, and is
    deleted.
    """
    for name in ("exchanges", "queries"):
        local = local_path(f"{state}/{name}")
        if local is None:
            if again:
                Location.of(f"{state}/{name}", {}).folder.delete_tree()
        elif local.exists():
            aside = local.parent / REPLACED / str(lineage) / name
            aside.parent.mkdir(parents=True, exist_ok=True)
            move(local, aside)


class RestoredStates:
    """Spark's checkpoints of the queries that continue: prepared in a folder of their own, then put in their places.

    What may fail because of what the savepoint holds, such as another number of state partitions, is done by `prepare`,
    before the restore has changed anything.
    """

    def __init__(self, comparison: Comparison, state: str, incarnation: int, lineages: Lineages) -> None:
        self._comparison, self._state, self._lineages = comparison, state, lineages
        self.folder = f"{state}/{DRAFTS}/{incarnation}"

    def prepare(self, spark: SparkSession, partitions: Mapping[str, int], reshaped: ReshapedExchanges) -> None:
        """Make them, from links to the savepoint's files where that is possible."""
        saved = self._comparison.saved
        for query, name in self._queries():
            place, draft = child(query_folder(name), "checkpoint"), child(self.folder, query_folder(query))
            for file in saved.below(place):
                link(child(saved.folder, f"{place}/{file}"), child(draft, file))
            for stamp in self._earlier_stamps({query, *self._lineages.later_names(name, saved.about.lineage)}):
                link(str(stamp), child(draft, f"{STAMPS}/{stamp.name}"))
            _translate(draft, saved.metadata.queries[name], reshaped)
            if query in partitions:
                repartition(spark, draft, partitions[query], f"job '{self._comparison.job}', query '{query}'")
            relocate(draft, checkpoint_of(self._state, query))

    def put(self) -> None:
        """Put them in their places, where there is nothing."""
        for query, _ in self._queries():
            draft, target = child(self.folder, query_folder(query)), checkpoint_of(self._state, query)
            local = local_path(target)
            if local is not None:
                local.parent.mkdir(parents=True, exist_ok=True)
                put_in_place(Path(draft), local)
                continue
            # Epochs count as committed when all else is there.
            names = sorted(Location.of(draft, {}).folder.files(), key=lambda name: name.startswith("commits/"))
            for file in names:
                link(child(draft, file), child(target, file))

    def discard(self) -> None:
        """Delete what is prepared and was not put, also by a restore that was interrupted."""
        drafts = f"{self._state}/{DRAFTS}"
        delete_drafts(drafts)
        with suppress(OSError):
            Location.of(drafts, {}).folder.delete_tree()

    def _earlier_stamps(self, uids: Iterable[str]) -> Iterator[Path]:
        """The configurations of epochs before the cut; a savepoint has only the last of them.

        The ledger keeps these epochs. An interrupted restore may have moved the stamps aside. On an object store, only
        a new job begins with a restore.
        """
        state = local_path(self._state)
        if state is not None:
            for queries in (state / "queries", *(state / REPLACED).glob("*/queries")):
                for uid in uids:
                    yield from (queries / uid / "checkpoint" / STAMPS).glob("*.json")

    def _queries(self) -> Iterator[tuple[str, str]]:
        """The queries that continue, each with its name in the savepoint."""
        for query, name in self._comparison.names.items():
            part = self._comparison.saved.metadata.queries[name]
            if part.epoch is not None and not part.finished:
                yield query, name


def _translate(draft: str, part: QueryMetadata, reshaped: ReshapedExchanges) -> None:
    """Put other positions into the last epoch of a checkpoint that is prepared."""
    offsets = {uid: source.offset for uid, source in part.sources.items() if source.offset is not None}
    translated = reshaped.translated(offsets)
    log, name = SparkLog(draft), f"offsets/{part.epoch}"
    text = log.read(name) if translated else None
    if text is not None:
        log.replace(name, with_offsets(text, translated))


def exchanges_in(place: str, operator: str) -> Iterator[tuple[str, str, ExchangeMaster]]:
    """Name, name for messages and master of each exchange in a folder, but for those not put back in full."""
    root = local_path(f"{place}/exchanges")
    for folder in sorted(root.iterdir()) if root is not None and root.is_dir() else ():
        exchange = f"{operator}, exchange '{folder.name}'"
        if (folder / UNFINISHED).exists():
            continue
        master = parts_at(str(folder), exchange).master
        if master.describe() is not None:
            yield folder.name, exchange, master


def claim_exchanges(
    state: str, interrupted: Iterable[int], mark: FenceMark, job_id: str, operator: str
) -> dict[str, int]:
    """Claim all exchanges of a state directory; the number of the last entry that each of them has had.

    After a crash they may have been moved aside already, together with what the interrupted restore has put in their
    place. A writer that was frozen before all this knows the number of its own log's next entry only, so the number
    with which the new log continues has to be above the last ones of all of them.
    """
    last: dict[str, int] = {}
    for lineage in interrupted:
        for name, _, master in exchanges_in(f"{state}/{REPLACED}/{lineage}", operator):
            last[name] = max(last.get(name, -1), master.log.look().last)
    for name, exchange, master in exchanges_in(state, operator):
        at = time.time_ns() // 1_000_000
        adopted = partial(decisions.adopt_entry, mark=mark, job_id=job_id, who=exchange, at=at)
        master.log.append(adopted, str(mark.incarnation))
        last[name] = max(last.get(name, -1), master.log.look().last)
    return last


def check_readers(comparison: Comparison, composition: Composition, specs: Sequence[QuerySpec], *, late: bool) -> None:
    """Refuse a source that has not begun, and reads an exchange whose first rows the savepoint lacks.

    With `late` there are other queries, which may read what is read under a uid that none of these has.
    """
    readers = {(reader.exchange, reader.uid): spec.uid for spec in specs for reader in composition.reads(spec)}
    if late:
        made = composition.exchanges.items()
        readers = {**{(name, uid): "" for name, exchange in made for uid in exchange.readers}, **readers}
    for (name, uid), query in readers.items():
        part = comparison.saved_query(query)
        begun = part is not None and (part.finished or part.epoch is not None)
        if begun or name not in comparison.saved.metadata.exchanges:
            continue
        operator = f"job '{comparison.job}', query '{query or '(not built yet)'}', source '{uid}'"
        pinned = read_pinned(child(comparison.saved.folder, exchange_folder(name)), operator)
        released = pinned.log.state.released_rows
        if released:
            raise StateError(
                f"the first {released} rows of exchange '{name}' had been released when the savepoint was taken, and "
                "this source had read nothing by then",
                operator=f"{operator}, {comparison.saved.who}",
                kept=UNCHANGED,
                do="leave the source out; or restore without it, and then discard the history of the query that writes "
                f"the exchange, with {RESET}",
            )


def check_inboxes(comparison: Comparison, specs: Sequence[QuerySpec]) -> None:
    """Refuse a savepoint that needs events of an inbox which are not there any more, or are another job's."""
    for spec in specs:
        part = comparison.saved_query(spec.uid)
        if part is None or part.finished:
            continue
        for uid, options in inboxes_of(spec):
            operator = f"job '{comparison.job}', query '{spec.uid}', source '{uid}', {comparison.saved.who}"
            offset = part.sources[uid].offset if uid in part.sources else None
            if offset is None or offset.ended:
                continue
            if not comparison.in_place:
                raise StateError(
                    f"the savepoint continues in the middle of inbox '{options['path'].rpartition('/')[2]}', whose "
                    "events are in the state directory of the savepoint's job",
                    operator=operator,
                    kept=UNCHANGED,
                    do="restore in place, in the state directory of that job",
                )
            _check_inbox(comparison, InboxPlace(options["path"], operator), uid, offset)


def _check_inbox(comparison: Comparison, place: InboxPlace, uid: str, offset: SourceOffset) -> None:
    flags = [flag.channel for flag in comparison.saved.flags if flag.source == uid]
    positions = Positions.by(offset, lambda upto: dict.fromkeys(flags))
    for gateway in channels(place.folder):
        kept, needed = place.log(gateway).kept(), positions.of(gateway)
        if kept > needed:
            raise StateError(
                f"the savepoint needs entry {needed} of gateway '{gateway}' of inbox '{place.name}', and those below "
                f"{kept} have been deleted: the job did not know of the savepoint, or its folder was elsewhere for a "
                "while",
                operator=place.operator,
                kept=UNCHANGED,
                do="restore a newer savepoint; those whose folders stay where they were taken keep what they need",
            )


def put_back_bad_rows(
    comparison: Comparison,
    ledger: Ledger,
    job_id: str,
    specs: Iterable[QuerySpec],
    lineage: int,
    sinks: Mapping[str, int],
    rolled_back: Collection[str],
) -> None:
    """Put the bad rows back to the savepoint, before the checkpoints of the job are moved aside.

    In another state directory nothing is there to be put back, and the rows of the savepoint's job stay as they are.
    """
    given = list(specs)
    bad_rows = BadRowsOfJob(comparison.job, job_id, ledger.uri, ledger.storage_options)
    tables: dict[str, set[str]] = {}
    for row in ledger.table(BadRowsRow).rows():
        tables.setdefault(row.source, set()).add(row.path)
    for spec in given:
        for operator in (*spec.sources, *((spec.sink,) if spec.sink else ())):
            named = {name.lower(): value for name, value in operator.options.items()}.get("bad_rows_path")
            tables.setdefault(operator.uid, set()).update([Location.of(named, {}).uri] if named else [])
    for spec in given:
        names = dict.fromkeys((spec.uid, comparison.names.get(spec.uid, spec.uid)))
        mine = {spec.sink.uid: sinks[spec.uid]} if spec.sink is not None and spec.uid in sinks else {}
        owners = [owner for name in names for owner in bad_rows.settle(name, checkpoint_of(ledger.uri, name), mine)]
        part = comparison.saved_query(spec.uid)
        newest = comparison.saved.about.lineage
        if spec.sink is not None and spec.sink.uid in rolled_back:
            paths = tables.get(spec.sink.uid, ())
            cut = _cut_of_sink(part, newest)
            bad_rows.put_back(spec.sink.uid, lineage, cut, owners, paths, newest=newest, role="sink")
        for source in spec.sources:
            saved = None if part is None else part.sources.get(source.uid)
            cut = None
            if part is not None and part.epoch is not None and saved is not None and saved.offset is not None:
                cut = Cut(saved.offset.lineage, part.epoch)
            bad_rows.put_back(source.uid, lineage, cut, owners, tables.get(source.uid, ()), newest=newest)


def _cut_of_sink(part: QueryMetadata | None, newest: int) -> Cut | None:
    """The savepoint's epoch; the lineage is that of the query then, which its sources may have had before."""
    if part is None or part.epoch is None:
        return None
    lineages = [source.offset.lineage for source in part.sources.values() if source.offset is not None]
    return Cut(max(lineages, default=newest), part.epoch)
