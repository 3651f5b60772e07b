"""What is done to a job between its runs, on request: the history of queries is discarded, or a reader forgotten."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from spark_ext.errors import RESET, ConfigurationError
from spark_ext.exchange import decisions
from spark_ext.exchange.kinds import parts, parts_at
from spark_ext.ingest.log import channels
from spark_ext.ingest.place import InboxPlace, inbox_path
from spark_ext.jobs.composition import Composition, node_of
from spark_ext.jobs.linking.inbox_figures import SOURCE
from spark_ext.jobs.linking.inboxes import inboxes_of
from spark_ext.jobs.starting.identity import unknown
from spark_ext.ledger import LedgerWriter, start_incarnation
from spark_ext.ledger.memory import JobMemory
from spark_ext.ledger.schema import ExchangeRow
from spark_ext.model.dag import JobGraph, QueryNode
from spark_ext.model.definitions import Role
from spark_ext.queries.reset import reset_queries

if TYPE_CHECKING:
    from spark_ext.ledger import Ledger


def reset(composition: Composition, ledger: Ledger, uid: str, reason: str, *, cascade: bool) -> None:
    """Discard the history of a query, and of those behind it."""
    job, known = composition.job, JobMemory.read(ledger)
    if uid not in known.ever and uid not in composition.uids:
        raise unknown(uid, known, f"job '{job}'", "reset")
    behind = [other for other in _behind(composition, known, uid) if known.knows(other)]
    if behind and not cascade:
        raise ConfigurationError(
            f"queries behind this one have read what it wrote, and would read it again: {', '.join(behind)}",
            operator=f"job '{job}', query '{uid}'",
            kept="nothing was changed",
            do=f"reset them with it: {RESET.replace('<query>', uid)}",
        )
    for name in (uid, *behind):
        _refuse_released(composition, known, name)
    # Readers first: should a checkpoint be unmovable, none of those that it depends on has been touched.
    former = {name: _former(known, name) for name in (*reversed(behind), uid)}
    reset_queries(ledger, job, composition.state, former, reason)


def _refuse_released(composition: Composition, known: JobMemory, query: str) -> None:
    """Refuse to begin again with an inbox whose first events are gone, unless the query says that it can."""
    spec = next((one for one in composition.specs if one.uid == query), None)
    definition = known.of(query).definition
    if spec is not None:
        given = [*inboxes_of(spec)]
    else:
        sources = () if definition is None else definition.of(Role.SOURCE)
        mine = [one for one in sources if one.format.lower() == SOURCE]
        given = [(one.uid, {"path": inbox_path(composition.state, one.identity["path"])}) for one in mine]
    for uid, options in given:
        place = InboxPlace(options["path"], f"job '{composition.job}', query '{query}', source '{uid}'")
        for gateway in channels(place.folder):
            kept = place.log(gateway).kept()
            if kept and options.get("starting") != "kept":
                raise ConfigurationError(
                    f"the query cannot read all of inbox '{place.name}' again: the entries of gateway '{gateway}' "
                    f"below {kept} have been released, as all that was in them is committed",
                    operator=place.operator,
                    kept="nothing was changed",
                    do=f"read it with inbox.read('{uid}', starting='kept'), which begins with what is still kept, and "
                    "reset the query then; what was released is in the tables that were written from it",
                )


def _former(known: JobMemory, uid: str) -> list[str]:
    return [name for name in known.lineages.names(uid, known.lineage(uid))[1:] if not known.knows(name)]


def _behind(composition: Composition, known: JobMemory, uid: str) -> tuple[str, ...]:
    """The queries behind one, by the job as it is given and, for those that it lacks, as the ledger remembers it."""
    nodes: dict[str, QueryNode] = {}
    for query in sorted(known.names):
        definition = known.of(query).definition
        if definition is not None:
            nodes[query] = node_of(query, definition)
    for spec in composition.specs:
        nodes[spec.uid] = QueryNode(spec.uid, composition.reads(spec), composition.writes(spec))
    for gate in composition.gates:
        before = nodes.get(gate.uid, QueryNode(gate.uid))
        nodes[gate.uid] = QueryNode(gate.uid, before.reads, before.writes, gate.after)
    written = {name for node in nodes.values() for name in node.writes}
    graph = JobGraph(
        tuple(
            QueryNode(
                node.uid,
                tuple(reader for reader in node.reads if reader.exchange in written),
                node.writes,
                tuple(other for other in node.after if other in nodes),
            )
            for node in nodes.values()
        )
    )
    return graph.descendants(uid) if uid in nodes else ()


def forget(composition: Composition, ledger: Ledger, exchange: str, uid: str) -> None:
    """A source is not part of the job any more: what it has not read is released."""
    operator = f"job '{composition.job}', exchange '{exchange}'"
    for spec in composition.specs:
        for reader in composition.reads(spec):
            if (reader.exchange, reader.uid) == (exchange, uid):
                raise ConfigurationError(
                    f"source '{uid}' is part of query '{spec.uid}' of the job",
                    operator=operator,
                    kept="the exchange is unchanged",
                    do="leave the query out of the job first",
                )
    made = composition.exchanges.get(exchange)
    if made is not None and uid in made.readers:
        raise ConfigurationError(
            f"this job calls exchange.read('{uid}'), so that it keeps the rows for this source",
            operator=operator,
            kept="the exchange is unchanged",
            do="remove that call, then forget the source",
        )
    path = f"{composition.state}/exchanges/{exchange}"
    found = parts_at(path, operator) if made is None else parts(made.kind, path, operator, made.options)
    master = found.master
    if master.describe() is None:
        raise ConfigurationError(
            "the job has no such exchange",
            operator=operator,
            kept="nothing was changed",
            do="correct the name; the exchanges of a job are the folders in 'exchanges' of its state directory",
        )
    writer = LedgerWriter(ledger, start_incarnation(ledger, composition.job))
    try:
        at = time.time_ns() // 1_000_000
        query = master.log.look().consumers.get(uid, "")
        number = str(writer.incarnation.number)
        master.log.append(lambda state: decisions.forget_entry(state, uid, operator, at), number)
        writer.append(
            ExchangeRow(
                exchange=exchange,
                event="forgotten",
                query=query,
                lineage=writer.incarnation.lineage,
                incarnation=writer.incarnation.number,
                at=datetime.now(timezone.utc),
            )
        )
    finally:
        writer.end("forget")
