"""Where each channel of a job stands, and what is in flight to it: one table, as of the newest committed epochs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from spark_ext.errors import SparkExtError
from spark_ext.exchange.kinds import described_at, parts
from spark_ext.exchange.positions import Front, as_read_by, rows_after
from spark_ext.ledger.columns import to_json
from spark_ext.ledger.schema import FinishedRow
from spark_ext.model.offsets import OffsetKind, SourceOffset
from spark_ext.views.page import graph
from spark_ext.views.page.facts import FactsReader, Resets
from spark_ext.views.page.figures import NONE, figures_of

if TYPE_CHECKING:
    from spark_ext.ledger import Ledger

SCHEMA: Final = pa.schema(
    [
        ("query", pa.string()),
        ("source", pa.string()),
        ("channel", pa.string()),
        ("state", pa.string()),
        ("position", pa.string()),
        ("epoch", pa.int64()),
        ("lineage", pa.int64()),
        ("exchange", pa.string()),
        ("rows_in_flight", pa.int64()),
    ]
)


def channel_state(ledger: Ledger) -> pa.Table:
    """See `LedgerFrames.channel_state`."""
    facts = FactsReader(ledger).read()
    resets = Resets.of(facts.jobs)
    figures = figures_of(facts.epochs, resets.least)
    found: dict[tuple[str, str, str], dict[str, Any]] = {}
    offsets: dict[tuple[str, str], SourceOffset] = {}
    for query, sources in facts.offsets.items():
        for raw in sources if isinstance(sources, list) else ():
            if not isinstance(raw, Mapping) or raw.get("kind") != OffsetKind.CHANNELS.value:
                continue  # one of Spark's own sources, or the marker of a watermark
            offset = SourceOffset.from_json(raw)
            if offset.lineage < resets.least(query):
                continue
            offsets[query, offset.uid] = offset
            for name, state, at in _channels(offset):
                epoch = figures.get(query, NONE).last
                found[query, offset.uid, name] = _row(state, at, epoch, offset.lineage)
    for row in ledger.table(FinishedRow).rows([("kind", "=", "channel")]):
        if row.lineage >= resets.least(row.query):
            found[row.query, row.source, row.channel] = _row("FINISHED", row.position, row.epoch, row.lineage)
    made_of = graph.operators(graph.newest_definitions(facts.definitions, facts.jobs))
    for query, own in made_of.items():
        for source in own["sources"]:
            if source["format"] == graph.READS:
                name, key = source["about"], (query, source["uid"])
                for channel, left in _in_flight(facts.directory, name, source["uid"], offsets.get(key)):
                    one = found.setdefault((*key, channel), _row("RUNNING", None, None, None))
                    one |= {"exchange": name, "rows_in_flight": left}
    rows = [
        {"query": query, "source": source, "channel": channel, **found[query, source, channel]}
        for query, source, channel in sorted(found)
    ]
    return pa.Table.from_pylist(rows, SCHEMA)


def _channels(offset: SourceOffset) -> Iterator[tuple[str, str, Any]]:
    yield from ((name, "RUNNING", state.at) for name, state in offset.running.items())
    yield from ((one.channel, "FINISHED", one.at) for one in offset.finished)


def _row(state: str, at: Any, epoch: int | None, lineage: int | None) -> dict[str, Any]:
    position = None if at is None else to_json(at)
    return {"state": state, "position": position, "epoch": epoch, "lineage": lineage}


def _in_flight(directory: str, name: str, uid: str, offset: SourceOffset | None) -> Iterator[tuple[str, int | None]]:
    """Rows of an exchange by partition that a source has not committed; None: not known any more, as in a copy."""
    path, operator = f"{directory}/exchanges/{name}", f"exchange '{name}'"
    about = described_at(path, operator)
    if about is None or (offset is not None and offset.ended):
        return
    rows: tuple[int | None, ...] = (None,) * about.partitions
    with suppress(KeyError, SparkExtError):
        master = parts(about.kind, path, operator, about.options).master
        state = master.log.look()
        front = Front(state.released, (0,) * about.partitions)
        if offset is not None and offset.running:
            positions = {channel: one.at for channel, one in offset.running.items()}
            front = Front.of(positions, about.partitions, operator)
        rows = rows_after(as_read_by(master.log.entry, uid), state, front)
    yield from ((str(number), left) for number, left in enumerate(rows))
