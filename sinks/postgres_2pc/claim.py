"""A start of the job: fence older incarnations off, then clean up what they have left."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from spark_ext.errors import StorageError
from spark_ext.failpoints import reach
from spark_ext.sinks.postgres_2pc import record
from spark_ext.sinks.postgres_2pc.commit import Committer, begin
from spark_ext.sinks.postgres_2pc.prepare import drop, pending, roll_back, staging_tables

if TYPE_CHECKING:
    from spark_ext.sinks.contract import Claim

PATIENCE = 90.0
"""Seconds to wait for the sink's row: longer than a frozen committer may hold it."""

FIRST_LOOK = 300
"""How long to wait for the row before older incarnations' connections are ended, ms."""


def application(mark: str, incarnation: int) -> str:
    """`application_name` of a sink's connections."""
    return f"spark_ext:{mark}:{incarnation}"


def take(committer: Committer, claim: Claim, mark: str) -> None:
    """Fence, end the connections of older incarnations, finish what was decided, discard the rest.

    Args:
        committer: for the target.
        claim: who takes it.
        mark: of the sink's connections.

    Raises:
        FencedError: a newer incarnation holds the table.
        ConfigurationError: the uid belongs to another job.
        StorageError: the sink's row stays locked.
    """
    connection, identity, who = committer.connection, committer.identity, committer.teller.who
    held, _, owner = _lock(committer, claim.incarnation, mark)
    record.refuse_older(held, claim.incarnation, who)
    record.refuse_other_owner(owner, claim, who)
    record.claimed(connection, identity, claim)
    connection.execute("COMMIT")
    reach("postgres.fenced")
    _end_older(committer, claim.incarnation, mark)
    committer.finish()
    for gid, origin in pending(connection, identity.mark):
        # Not decided on, and no longer to be: that would need the fence.
        if origin.incarnation < claim.incarnation:
            roll_back(connection, gid)
    old = [name for name, origin in staging_tables(connection, identity.mark) if origin.incarnation < claim.incarnation]
    drop(connection, old)
    reach("postgres.cleaned")


def _lock(committer: Committer, incarnation: int, mark: str) -> tuple[int, str | None, str | None]:
    """The sink's row, locked: also when a committer that was frozen in its transaction holds it."""
    import psycopg

    end = time.monotonic() + PATIENCE
    while True:
        begin(committer.connection, FIRST_LOOK)
        try:
            return record.lock(committer.connection, committer.identity)
        except psycopg.errors.LockNotAvailable:
            committer.connection.execute("ROLLBACK")
        _end_older(committer, incarnation, mark)
        if time.monotonic() > end:
            raise StorageError(
                f"the sink's row in {record.SCHEMA}.sinks has been locked by another connection for {PATIENCE:g} s",
                operator=committer.teller.who,
                kept="everything that was committed; nothing was started",
                do="see in pg_locks who holds it, and end that connection",
            )


def _end_older(committer: Committer, incarnation: int, mark: str) -> None:
    """End connections of older incarnations, as far as the role may: their transactions are rolled back."""
    prefix = application(mark, 0).removesuffix("0")
    committer.connection.execute(
        # Waits for its end, ms: one that is just preparing is not to finish that behind the look for what is prepared.
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity a JOIN pg_roles r ON r.oid = a.usesysid "
        "WHERE datname = current_database() AND pid <> pg_backend_pid() "
        # What the server asks for; else the whole statement would be refused.
        "AND CASE WHEN r.rolsuper THEN current_setting('is_superuser')::bool ELSE pg_has_role(r.oid, 'USAGE') END "
        # CASE, because AND may look at either side first, and other names have no number.
        "AND CASE WHEN application_name ~ %s THEN split_part(application_name, ':', 3)::bigint < %s ELSE false END",
        (f"^{prefix}[0-9]+$", incarnation),
    )
