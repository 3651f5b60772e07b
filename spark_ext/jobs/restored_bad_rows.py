"""The bad rows of a job that is restored from a savepoint: those that were read after it do not count any more."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from spark_ext.bad_rows.lineages import Cut
from spark_ext.bad_rows.restored import BadRowsOfJob
from spark_ext.datafiles.location import Location
from spark_ext.jobs.memory import checkpoint_of
from spark_ext.ledger.schema import BadRowsRow

if TYPE_CHECKING:
    from spark_ext.jobs.restore_checks import Comparison
    from spark_ext.ledger import Ledger
    from spark_ext.queries.spec import QuerySpec


def put_back_bad_rows(
    comparison: Comparison, ledger: Ledger, job_id: str, specs: Iterable[QuerySpec], lineage: int
) -> None:
    """Put the bad rows back to the savepoint, before the checkpoints of the job are moved aside.

    In another state directory nothing is there to be put back, and the rows of the savepoint's job stay as they are.

    Args:
        comparison: of job and savepoint.
        ledger: the job's.
        job_id: of the job.
        specs: its queries.
        lineage: of the restore.

    Raises:
        SparkExtError: a table cannot be written.
        OSError: the state directory cannot be read or written.
    """
    given = list(specs)
    bad_rows = BadRowsOfJob(comparison.job, job_id, ledger.uri, ledger.storage_options)
    tables: dict[str, set[str]] = {}
    for row in ledger.table(BadRowsRow).rows():
        tables.setdefault(row.source, set()).add(row.path)
    for spec in given:
        for source in spec.sources:
            named = {name.lower(): value for name, value in source.options.items()}.get("bad_rows_path")
            tables.setdefault(source.uid, set()).update([Location.of(named, {}).uri] if named else [])
    for spec in given:
        names = dict.fromkeys((spec.uid, comparison.names.get(spec.uid, spec.uid)))
        owners = [owner for name in names for owner in bad_rows.settle(name, checkpoint_of(ledger.uri, name))]
        part = comparison.saved_query(spec.uid)
        for source in spec.sources:
            saved = None if part is None else part.sources.get(source.uid)
            cut = None
            if part is not None and part.epoch is not None and saved is not None and saved.offset is not None:
                cut = Cut(saved.offset.lineage, part.epoch)
            newest = comparison.saved.about.lineage
            bad_rows.put_back(source.uid, lineage, cut, owners, tables.get(source.uid, ()), newest=newest)
