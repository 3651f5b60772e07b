"""Phase two: the table's log. Opening, creating, adding columns, and the one commit by which an epoch becomes visible.

The recipe. The table keeps, for each application id, the last version that was committed under it: the epoch's number
under the epoch's id, the incarnation under `fence:<uid>`, a number drawn from the job's id under `owner:<uid>`. A
commit looks at them in the table as it has loaded it, and writes its own through the same handle. Any commit in between
that wrote one of the same ids is a conflict that Delta's own check finds when the log's next file is taken; then all is
loaded and looked at again. So what was looked at still holds at the moment of the commit, however long the process was
frozen in between.
"""

from __future__ import annotations

import hashlib
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction

from spark_ext.datafiles.writer import DataFile, commit_info
from spark_ext.delta.failures import error_number
from spark_ext.delta.features import TableFacts, demands, refuse
from spark_ext.errors import CommitError, ConfigurationError, FencedError, SparkExtError, StorageError
from spark_ext.failpoints import reach
from spark_ext.model.commits import Claim, CommitOutcome, Epoch
from spark_ext.schemas import parquet_types as delta_types

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from spark_ext.datafiles.location import Place

ROUNDS = 40
"""How often a commit that met another one is looked at again before the base's back-off takes over."""

_NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
"""Both list the log's folder after the commit, on the epoch's critical path; `_delta.upkeep` does it behind."""


class _Open(threading.local):
    """Loaded tables of this thread by (path, sink uid), with whose they are: sinks are built anew for each epoch.

    A handle must not be shared: another thread that brought it up to date between the look and the commit would hide
    the conflict on which exactness rests.
    """

    def __init__(self) -> None:
        self.tables: dict[tuple[str, str], tuple[tuple[object, ...], DeltaTable]] = {}


_open = _Open()


def owner_number(job_id: str) -> int:
    """A job's id as the number that a Delta transaction can hold: 63 bits of its SHA-256."""
    return int.from_bytes(hashlib.sha256(job_id.encode()).digest()[:8], "big") >> 1


class Target:
    """One table as the target of one sink."""

    def __init__(
        self,
        place: Place,
        uid: str,
        *,
        partition_by: Sequence[str],
        merge_schema: bool,
        properties: Mapping[str, str],
    ) -> None:
        self.place, self.uid = place, uid
        self._partition_by = list(partition_by)
        self._merge_schema = merge_schema
        self._properties = dict(properties)
        self.who = f"sink '{uid}' (delta_2pc {place.uri})"

    # -- the table ----------------------------------------------------------------------------------------------------

    def load(self) -> DeltaTable | None:
        """The table as it is now; None when there is none.

        Raises:
            StorageError: it cannot be read.
        """
        try:
            return DeltaTable(self.place.uri, storage_options=self.place.options)
        except TableNotFoundError:
            return None
        except (DeltaError, OSError) as problem:
            raise self._storage("could not be opened", problem) from problem

    def _kept(self, whose: tuple[object, ...]) -> DeltaTable | None:
        """The table through the handle that this process keeps, brought up to date."""
        key = (self.place.uri, self.uid)
        owner, table = _open.tables.get(key, (None, None))
        if table is None or owner != whose or not self.place.has_log(table.version()):
            _open.tables.pop(key, None)
            table = self.load()
            if table is not None:
                _open.tables[key] = (whose, table)
            return table
        try:
            table.update_incremental()
        except (DeltaError, OSError) as problem:
            _open.tables.pop(key, None)
            raise self._storage("could not be read", problem) from problem
        return table

    def facts(self, table: DeltaTable) -> TableFacts:
        """What the log says of the table."""
        protocol = table.protocol()
        return TableFacts(
            protocol.min_writer_version,
            frozenset(protocol.writer_features or ()),
            table.metadata().configuration,
            delta_types.from_delta(table.schema().to_json()),
        )

    def check(self, table: DeltaTable, schema: StructType) -> tuple[Any, ...]:
        """Refuse a table that the rows do not fit, or that demands what the sink does not write.

        Returns:
            The columns that are to be added.

        Raises:
            UnsupportedTableError: names the features.
            ConfigurationError: names the column, the expected and the given type.
        """
        facts = self.facts(table)
        refuse(demands(facts), self.who, self.place.uri)
        found = list(table.metadata().partition_columns)
        if found != self._partition_by:
            raise ConfigurationError(
                f"the table is partitioned by ({', '.join(found)}), the option 'partition_by' says "
                f"({', '.join(self._partition_by)})",
                operator=self.who,
                kept="the table is as it was",
                do=f'set .option("partition_by", "{",".join(found)}"), or write to another table',
            )
        fit = delta_types.fit(schema, facts.schema)
        misfit = fit.misfit
        if fit.new and not self._merge_schema:
            first = fit.new[0]
            misfit = f"column '{first.name}' ({first.dataType.simpleString()}) is not in the table"
        if misfit:
            raise ConfigurationError(
                misfit,
                operator=self.who,
                kept="the table is as it was",
                do='add .option("merge_schema", "true") to add new columns, or drop them in the query'
                if fit.new
                else "change the query so that it gives what the table has (cast, rename), or write to another table",
            )
        if any(field.dataType.typeName() == "timestamp_ntz" for field in fit.new):
            refuse(
                () if "timestampNtz" in facts.writer_features else ("timestampNtz for a new column",),
                self.who,
                self.place.uri,
            )
        return fit.new

    def _create(self, schema: StructType, transactions: list[Transaction]) -> None:
        """Create the table, fence included, unless somebody else is first."""
        made = delta_types.table_schema(schema)
        try:
            DeltaTable.create(
                self.place.uri,
                Schema.from_json(made.json()),
                mode="error",
                partition_by=self._partition_by or None,
                configuration=self._properties,
                storage_options=self.place.options,
                commit_properties=CommitProperties(app_transactions=transactions),
                post_commithook_properties=_NO_HOOKS,
            )
        except OSError as problem:
            raise self._storage("could not be created", problem) from problem
        except DeltaError as problem:
            if error_number(problem, str(problem)) is not None:
                raise self._storage("could not be created", problem) from problem
            # Version 0 is taken at most once. If it is not there now, it was not a race.
            if self.load() is None:
                raise ConfigurationError(
                    f"the table could not be created: {problem}",
                    operator=self.who,
                    kept="nothing was written",
                    do="correct the options 'table_properties', 'partition_by' or 'path'",
                ) from problem

    def _add_columns(self, table: DeltaTable, new: Sequence[Any], transactions: list[Transaction]) -> None:
        """Add columns in a commit of their own, fenced like any: until the rows come they are null everywhere."""
        from pyspark.sql.types import StructType

        added = Schema.from_json(delta_types.table_schema(StructType(list(new))).json())
        table.alter.add_columns(
            list(added.fields),
            commit_properties=CommitProperties(app_transactions=transactions, max_commit_retries=0),
            post_commithook_properties=_NO_HOOKS,
        )

    # -- commits ------------------------------------------------------------------------------------------------------

    def commit(self, schema: StructType, epoch: Epoch, files: Sequence[DataFile]) -> tuple[CommitOutcome, int]:
        """Make the files of an epoch visible, once, unless a newer incarnation has claimed the table.

        Returns:
            What was found, and the table's version then (at least).

        Raises:
            FencedError: it has.
            ConfigurationError: the rows do not fit the table, or a feature is demanded.
            CommitError: others were faster, again and again.
            StorageError: the log cannot be read or written.
        """

        def attempt() -> tuple[CommitOutcome, int] | None:
            table = self._kept((epoch.query_id, epoch.lineage, epoch.incarnation))
            fence = self._fence(epoch.incarnation)
            if table is None:
                delta_types.check_input(schema, self._partition_by, self.who)
                reach("delta.before_create")
                self._create(schema, fence)
                return None
            held = self.look(table, epoch.incarnation)
            done = table.transaction_version(epoch.application)
            if done is not None and done >= epoch.number:
                if held < epoch.incarnation:
                    # The table was made by an older incarnation after the claim, which then had nothing to fence.
                    self._write(table, (), fence, {})
                return CommitOutcome.ALREADY_COMMITTED, table.version()
            new = self.check(table, schema)
            if new:
                reach("delta.before_columns")
                self._add_columns(table, new, fence)
                return None
            reach("delta.before_commit")
            self._write(table, files, [Transaction(epoch.application, epoch.number), *fence], commit_info(epoch, files))
            reach("delta.committed")
            return CommitOutcome.COMMITTED, table.version() + 1

        settled: tuple[CommitOutcome, int] = self.until_settled(attempt, f"epoch {epoch.number}")
        return settled

    def claim(self, claim: Claim, schema: StructType | None) -> DeltaTable | None:
        """Fence older incarnations off.

        Args:
            claim: whose the table is from now on.
            schema: of the rows, to create the table with; None when it is not known.

        Returns:
            The table with the fence in it; None when there is no table and it could not be created.

        Raises:
            FencedError: a newer incarnation has claimed it.
            ConfigurationError: another job owns the epochs that the table has of this uid.
        """
        mine = [*self._fence(claim.incarnation), Transaction(f"owner:{self.uid}", owner_number(claim.job_id))]

        def attempt() -> tuple[DeltaTable | None] | None:
            table = self.load()
            if table is None:
                if schema is None:
                    return (None,)
                delta_types.check_input(schema, self._partition_by, self.who)
                self._create(schema, mine)
                return None
            self._refuse_other_owner(table, claim)
            if self.look(table, claim.incarnation) < claim.incarnation:
                reach("delta.before_fence")
                self._write(table, (), mine, {"spark_ext": f"claim of {self.uid}, incarnation {claim.incarnation}"})
                return None
            return (table,)

        settled: tuple[DeltaTable | None] = self.until_settled(attempt, f"the claim of {claim.incarnation}")
        return settled[0]

    def _fence(self, incarnation: int) -> list[Transaction]:
        return [Transaction(f"fence:{self.uid}", incarnation)] if incarnation else []

    def look(self, table: DeltaTable, incarnation: int) -> int:
        """The incarnation that holds the table.

        Raises:
            FencedError: it is a newer one.
        """
        held = table.transaction_version(f"fence:{self.uid}") or 0
        if incarnation and held > incarnation:
            raise FencedError(
                f"incarnation {held} of the job has claimed the table; this is incarnation {incarnation}",
                operator=self.who,
                kept="everything that was committed; nothing of this incarnation is added",
                do="nothing: the newer start of the job goes on; see that only one is started",
            )
        return held

    def _refuse_other_owner(self, table: DeltaTable, claim: Claim) -> None:
        owner = table.transaction_version(f"owner:{self.uid}")
        if owner is not None and owner != owner_number(claim.job_id):
            raise ConfigurationError(
                f"the table holds epochs that another job wrote under the sink uid '{self.uid}', "
                f"or this job '{claim.job}' before its state was deleted",
                operator=self.who,
                kept="the table is as it was; nothing was started",
                do="give this sink another uid; or, if the state was deleted, bring it back, "
                f"or delete the output at {self.place.uri} to write it anew",
            )

    def _write(
        self,
        table: DeltaTable,
        files: Sequence[DataFile],
        transactions: list[Transaction],
        told: dict[str, Any],
    ) -> None:
        """One commit through the handle that was looked at."""
        table.create_write_transaction(
            [
                AddAction(
                    path=file.path,
                    size=file.size,
                    partition_values=file.partition,
                    modification_time=file.modified_ms,
                    data_change=True,
                    stats=file.statistics,
                )
                for file in files
            ],
            mode="append",
            schema=table.schema(),
            partition_by=self._partition_by or None,
            # Commits of others that touch nothing of ours are passed by Delta's own conflict check.
            commit_properties=CommitProperties(told or None, max_commit_retries=10, app_transactions=transactions),
            post_commithook_properties=_NO_HOOKS,
        )

    def until_settled(self, attempt: Callable[[], Any], what: str) -> Any:
        """Try until nobody else's commit came in between; what the attempt gives then.

        Args:
            attempt: looks at the table and writes through the same handle; None to be called again.
            what: is tried, for messages.

        Raises:
            CommitError: others were faster, again and again.
            StorageError: the log cannot be read or written.
        """
        for round_ in range(ROUNDS):
            try:
                settled = attempt()
            except CommitFailedError as problem:
                if "Unsupported table features" in str(problem):
                    refuse((str(problem),), self.who, self.place.uri)
                # Somebody else was faster; who, is seen when the table is looked at again.
                time.sleep(random.uniform(0.001, 0.02) * min(round_ + 1, 10))
                continue
            except SparkExtError:
                raise
            except (DeltaError, OSError) as problem:
                _open.tables.pop((self.place.uri, self.uid), None)
                raise self._storage("could not be written", problem) from problem
            if settled is not None:
                return settled
        raise CommitError(
            f"other writers of the table were faster than {what}, {ROUNDS} times in a row",
            operator=self.who,
            kept="the epoch's files, not yet visible",
            do="see who commits to the table so often",
        )

    def _storage(self, what: str, problem: Exception) -> StorageError:
        return StorageError(
            f"the table {what}: {problem}",
            operator=self.who,
            kept="all that was committed before",
            do="see to the storage (space, permissions, network, storage_options)",
        )
