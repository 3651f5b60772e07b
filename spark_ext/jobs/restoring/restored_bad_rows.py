"""The bad rows of a job that is restored from a savepoint: those that were read after it do not count any more."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from spark_ext.bad_rows.restored import BadRowsOfJob, Cut
from spark_ext.ledger.schema import BadRowsRow
from spark_ext.queries.context import checkpoint_of
from spark_ext.storage import Location

if TYPE_CHECKING:
    from spark_ext.jobs.restoring.restore_checks import Comparison
    from spark_ext.ledger import Ledger
    from spark_ext.model.checkpoint_metadata import QueryMetadata
    from spark_ext.queries.spec import QuerySpec


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
