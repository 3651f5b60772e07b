"""A start of the job: fence off older incarnations, then clean up what they have left."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import psycopg

from spark_ext.errors import StorageError
from spark_ext.failpoints import FailPoint, reach
from spark_ext.sinks.postgres_2pc import record
from spark_ext.sinks.postgres_2pc.commit import Committer
from spark_ext.sinks.postgres_2pc.prepare import drop, pending, roll_back, staging_tables
from spark_ext.sinks.postgres_2pc.table import add, lacking

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from spark_ext.sinks.contract import Claim

PATIENCE = 90.0  # Time limit for locking the sink's row, s: longer than a frozen committer can hold it
FIRST_LOOK = 300  # How long to wait for the row before the connections of older incarnations are ended, ms


def take(committer: Committer, claim: Claim, mark: str) -> None:
    """Set the fence, end the connections of older incarnations, finish what was decided, discard the rest."""
    connection, identity, who = committer.connection, committer.identity, committer.errors.who
    held = _lock(committer, claim.incarnation, mark)
    if record.refuse_claim(connection, identity, held, claim, who):
        held.check_table(committer.table.oid, who)
    record.claimed(connection, identity, claim, committer.table.oid)
    connection.execute("COMMIT")
    reach(FailPoint.POSTGRES_FENCED)
    _end_older(committer, claim.incarnation, mark)
    committer.finish()
    for gid, origin in pending(connection, identity.mark):
        # Not decided on, and can no longer be: that would require the fence.
        if origin.incarnation < claim.incarnation:
            roll_back(connection, gid)
    old = [name for name, origin in staging_tables(connection, identity.mark) if origin.incarnation < claim.incarnation]
    drop(connection, old)
    reach(FailPoint.POSTGRES_CLEANED)


def make_ready(committer: Committer, claim: Claim, schema: StructType | None) -> None:
    """Add the columns that the table lacks, if the rows' are given, and run `setup_sql` if it has not run.

    In one transaction under the fence, after `take`: what older incarnations have prepared holds locks on the table.
    """
    connection, who = committer.connection, committer.errors.who
    record.begin(connection, committer.lock_timeout)
    record.refuse_older(record.lock(connection, committer.identity).mark, claim.mark, who)
    if schema is not None:
        add(connection, committer.table.name, lacking(schema, committer.table.columns, who), who)
    committer.statements.set_up(connection, committer.identity, who)
    connection.execute("COMMIT")
    reach(FailPoint.POSTGRES_READY)


def _lock(committer: Committer, incarnation: int, mark: str) -> record.SinkRow:
    """Lock the sink's row, even if a committer that is frozen in its transaction holds it."""
    end = time.monotonic() + PATIENCE
    while True:
        record.begin(committer.connection, FIRST_LOOK)
        try:
            return record.lock(committer.connection, committer.identity)
        except psycopg.errors.LockNotAvailable:
            committer.connection.execute("ROLLBACK")
        _end_older(committer, incarnation, mark)
        if time.monotonic() > end:
            raise StorageError(
                f"the sink's row in {record.SCHEMA}.sinks has been locked by another connection for {PATIENCE:g} s",
                operator=committer.errors.who,
                kept="everything that was committed; nothing was started",
                do="find the connection that holds it in pg_locks, and end it",
            )


def _end_older(committer: Committer, incarnation: int, mark: str) -> None:
    """End the connections of older incarnations that the role may end: their transactions are rolled back."""
    prefix = record.application(mark, 0).removesuffix("0")
    committer.connection.execute(
        # Waits for the end, ms: a connection that is preparing must not finish after the search for what is prepared.
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity a JOIN pg_roles r ON r.oid = a.usesysid "
        "WHERE datname = current_database() AND pid <> pg_backend_pid() "
        # The privilege that the server requires; otherwise the whole statement would be refused.
        "AND CASE WHEN r.rolsuper THEN current_setting('is_superuser')::bool ELSE pg_has_role(r.oid, 'USAGE') END "
        # CASE, because AND may evaluate either side first, and other names have no number. At most 18 digits, as any
        # user may choose a name with a number that no bigint holds.
        "AND CASE WHEN application_name ~ %s THEN split_part(application_name, ':', 3)::bigint < %s ELSE false END",
        (f"^{prefix}[0-9]{{1,18}}$", incarnation),
    )
