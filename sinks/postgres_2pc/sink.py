"""The sink `postgres_2pc`: each epoch is one transaction in PostgreSQL, exactly once.

    frame.writeStream.format("postgres_2pc").option("uid", "daily").option("dsn", ...).option("table", "daily").start()

Tasks copy their rows to where no reader sees them (`prepare`); the driver makes them visible and records the epoch in
one transaction (`commit`), under a lock that is the fence (`record`). See `docs/postgres_2pc.md` for the guarantee and
its limits.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import pyarrow as pa
from pydantic import BeforeValidator, Field, field_validator, model_validator
from pyspark.sql.types import StructType

from spark_ext.bad_rows.sift import Numbered
from spark_ext.clients.postgres.connection import ColumnName, ColumnNames, ConnectionOptions, Name, Server, session
from spark_ext.clients.postgres.problems import translated
from spark_ext.errors import NOTHING_VISIBLE, refused
from spark_ext.model.commits import FenceMark, not_the_target
from spark_ext.options import Bytes, Milliseconds, new_names
from spark_ext.schemas.arrow import arrow_schema
from spark_ext.sinks.contract import Claim, CommitOutcome, Epoch, SinkOptions, Task, TwoPhaseCommitSink
from spark_ext.sinks.postgres_2pc import record
from spark_ext.sinks.postgres_2pc.record import Identity
from spark_ext.sinks.postgres_2pc.rows import NullKey, RowErrors, cast, keyed, refuse_null_keys
from spark_ext.sinks.postgres_2pc.statements import Statements, check
from spark_ext.sinks.postgres_2pc.table import Table, create, lacking, look_up, missing, possible, renamed, usable
from spark_ext.sinks.runtime.aside import Aside as TaskAside

if TYPE_CHECKING:
    import psycopg

    from spark_ext.sinks.postgres_2pc.commit import Committer
    from spark_ext.sinks.postgres_2pc.prepare import Part

_NEW_NAMES = BeforeValidator(new_names("name in rows=name in table"))


class PostgresSinkOptions(SinkOptions, ConnectionOptions):
    """Options of `postgres_2pc`."""

    identity_fields: ClassVar[frozenset[str]] = frozenset({"table"})
    foreign_names: ClassVar[Mapping[str, str]] = {
        "batchsize": "remove the option: rows are copied, not inserted one by one",
        "dbtable": "table",
        "driver": "remove the option: the sink has a driver of its own",
        "querytimeout": "statement_timeout",
        "truncate": "remove the option: a stream appends, or replaces rows by key with mode=upsert",
        "url": "set dsn, such as 'postgresql://host:5432/database', or host, port and dbname",
    }

    table: str  # Name of the table, `orders` or `shop.orders`; case-sensitive, with special names in double quotes
    mode: Literal["append", "upsert"] = "append"
    key: ColumnNames = ()  # For `upsert`: the key columns; the table needs a primary key or unique index on them
    # For `upsert`: of rows of one key in an epoch the greatest counts; without it they are refused.
    newest_by: ColumnName | None = None
    prepared: bool = False  # Whether tasks copy into the table, in prepared transactions, without staging tables
    create_table: bool = True  # Whether to create the table, with the columns of the rows, if it does not exist
    inline_size: Bytes = 64 * 1024  # Bytes of a task's rows that are sent with its commit message; 0: never
    lock_timeout: Milliseconds = 30_000  # For a lock on the table or the sink's record, ms; then the epoch is retried
    statement_timeout: Milliseconds | None = None  # ms; then the epoch is retried. 0: none; default: the server's
    # Names of columns in the table by their names in the rows, as `a=x, b=y` or as a JSON object; the other columns
    # keep their names. `key` and `newest_by` are names in the table.
    column_map: Annotated[dict[str, str], BeforeValidator(new_names("name in rows=name in table"))] = Field(
        default_factory=dict
    )
    schema_evolution: Literal["refuse", "add_columns"] = "refuse"  # What is done about columns that the table lacks
    setup_sql: str | None = None  # Statements that run once for the table and the uid, before the first epoch
    pre_sql: str | None = None  # Statements that run in the transaction of each epoch, before its rows
    post_sql: str | None = None  # Statements that run in the transaction of each epoch, after its rows
    redact: bool = False  # Whether errors omit values of rows

    @field_validator("table")
    @classmethod
    def _is_a_name(cls, value: str) -> str:
        Name.parse(value)
        return value

    @field_validator("setup_sql", "pre_sql", "post_sql")
    @classmethod
    def _within_a_transaction(cls, value: str | None) -> str | None:
        return None if value is None else check(value)

    @model_validator(mode="after")
    def _together(self) -> PostgresSinkOptions:
        if self.mode == "upsert" and not self.key:
            raise ValueError("mode=upsert needs the option 'key'")
        if self.mode == "append" and (self.key or self.newest_by):
            raise ValueError("key and newest_by require mode=upsert")
        if self.on_bad_row == "quarantine" and self.prepared:
            raise ValueError(
                "on_bad_row=quarantine requires prepared=false: what a task has prepared is committed as a whole"
            )
        if self.mode == "upsert" and self.prepared:
            raise ValueError("prepared=true requires mode=append: COPY cannot replace rows")
        for name in ("pre_sql", "post_sql"):
            if self.prepared and getattr(self, name) is not None:
                raise ValueError(f"{name} requires prepared=false: the rows are in transactions of their own")
        return self

    @property
    def statements(self) -> Statements:
        """The statements that run with the epochs."""
        return Statements(self.setup_sql, self.pre_sql, self.post_sql, self.redact)


class PostgresTwoPhaseCommit(TwoPhaseCommitSink):
    """Exactly-once writes to a PostgreSQL table, one transaction per epoch."""

    options_type = PostgresSinkOptions
    options: PostgresSinkOptions
    quarantines = True

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        self._table = Name.parse(self.options.table)
        self._schema: StructType | None = None

    @classmethod
    def name(cls) -> str:
        """`postgres_2pc`."""
        return "postgres_2pc"

    @cached_property
    def _server(self) -> Server:
        return Server.of(self.options, f"sink '{self.options.uid}' (postgres_2pc)")

    @cached_property
    def _who(self) -> str:
        return f"sink '{self.options.uid}' (postgres_2pc {self._server.name}, table {self._table})"

    def __getstate__(self) -> dict[str, Any]:
        """Sent to executors without what depends on the environment, which may name another server there."""
        return {key: value for key, value in self.__dict__.items() if key not in ("_server", "_who")}

    # -- before the query ----------------------------------------------------------------------------------------------

    def validate(self, schema: StructType) -> None:
        """Refuse a server, table or types that cannot be used."""
        from spark_ext.sinks.postgres_2pc.types import new_type

        options = self.options
        schema = renamed(schema, options.column_map, self._who)
        for field in schema.fields:
            new_type(field.dataType, field.name, self._who)
        for name in (*options.key, *([options.newest_by] if options.newest_by else [])):
            if name not in schema.names:
                what = (
                    f"the options 'key' and 'newest_by' name a column '{name}' that the query does not have; it has: "
                )
                do = "correct the options, or add the column to the query"
                raise refused(what + ", ".join(schema.names), self._who, do)
        with self._in_session(0) as connection:
            table = look_up(connection, self._table, self._who)
            if table is not None:
                there = schema
                if options.schema_evolution == "add_columns":
                    # Added by the claim; the others have to fit before anything is.
                    new = lacking(schema, table.columns, self._who)
                    there = StructType([field for field in schema if field not in new])
                table = usable(connection, self._table, there, options.key, self._who, make=False)
                self._refuse_prepared_without_copy(table, self._who)
            elif not options.create_table:
                raise missing(self._table, self._who)
            else:
                lacking(schema, (), self._who)
            if options.prepared:
                self._refuse_without_prepared_transactions(connection)
        self._schema = schema

    def _refuse_prepared_without_copy(self, table: Table, who: str) -> None:
        if self.options.prepared and table.only_insert is not None:
            what = f"the table has {table.only_insert}, which COPY does not support, and prepared=true only uses COPY"
            raise refused(what, who, "set prepared=false: rows are then moved by INSERT")

    def _refuse_without_prepared_transactions(self, connection: psycopg.Connection[Any]) -> None:
        found = connection.execute("SELECT current_setting('max_prepared_transactions')::int").fetchone()
        if found == (0,):
            raise refused(
                "the server does not allow prepared transactions (max_prepared_transactions = 0)",
                self._who,
                "set max_prepared_transactions in postgresql.conf to at least twice the number of the query's tasks "
                "and restart the server, or set prepared=false",
            )

    def early_key(self) -> tuple[str, ...] | None:
        """With mode=upsert its key, by the names of the query, where the row of the later epoch always counts."""
        options = self.options
        if options.mode != "upsert":
            return None
        name = next((name for name in ("newest_by", "pre_sql", "post_sql") if getattr(options, name) is not None), None)
        if name is not None:
            why = "a later row need not replace" if name == "newest_by" else "statements would run for"
            what = f"emit='early': with '{name}' {why} one that was shown before its window was complete"
            raise refused(what, f"sink '{options.uid}' (postgres_2pc)", f"remove '{name}', or leave emit='early' out")
        given = {there: here for here, there in options.column_map.items()}
        return tuple(given.get(name, name) for name in options.key)

    def check_claim(self, claim: Claim) -> None:
        """By the sink's row, without a lock."""
        with self._in_session(0) as connection:
            table = look_up(connection, self._table, self._who)
            if table is None:
                self._refuse_gone(connection, claim)
                return
            identity = Identity(claim.sink, str(table.name))
            held = record.read_row(connection, identity)
            if held is not None:
                record.refuse_claim(connection, identity, held, claim, self._who)

    def claim(self, claim: Claim) -> None:
        """Set the fence, then clean up what dead incarnations have left; see `claim`.

        Without a table there is nothing to fence; it is created here if `validate` was called with a schema.
        """
        from spark_ext.sinks.postgres_2pc.claim import make_ready, take

        with self._in_session(claim.incarnation) as connection:
            table = look_up(connection, self._table, self._who)
            if table is None:
                self._refuse_gone(connection, claim)
                if self._schema is not None and self.options.create_table:
                    create(connection, self._table, self._schema, self.options.key, self._who)
                    table = look_up(connection, self._table, self._who)
            if table is None:
                raise missing(self._table, self._who)
            committer = self._committer(connection, table, (), self._who, claim.mark)
            take(committer, claim, self._mark)
            grown = self._schema if self.options.schema_evolution == "add_columns" else None
            if grown is not None or self.options.setup_sql is not None:
                make_ready(committer, claim, grown)

    def _refuse_gone(self, connection: psycopg.Connection[Any], claim: Claim) -> None:
        """Refuse to create a table to which epochs were committed before."""
        epochs: dict[str, int] = {}
        for name in possible(connection, self._table):
            epochs |= claim.known(record.known(connection, Identity(claim.sink, str(name))))
        claim.check_state(epochs, None, self._who)
        if epochs:
            raise not_the_target("the table does not exist, and epochs were committed to it", self._who)

    def check(self, epoch: Epoch) -> None:
        """Look at the sink's row and the table, without a lock."""
        with self._in_session(epoch.incarnation) as connection:
            table = look_up(connection, self._table, self._who)
            if table is None:
                raise not_the_target("the table does not exist", self._who)
            identity = Identity(epoch.sink, str(table.name))
            held = record.read_row(connection, identity)
            mark = None if held is None else held.mark
            epoch.check_target(mark, record.last(connection, identity, epoch), self._who)
            if held is not None:
                held.check_table(table.oid, self._who)

    # -- an epoch ------------------------------------------------------------------------------------------------------

    def write(self, schema: StructType, batches: Iterator[pa.RecordBatch], task: Task) -> Part | None:
        """Write rows that no reader sees: in the message, a staging table or a prepared transaction."""
        from spark_ext.sinks.postgres_2pc.prepare import Origin, gather, make_way, prepare, stage

        schema = renamed(schema, self.options.column_map, self._who)
        arrow = arrow_schema(schema, nullable=True)
        who = f"{self._who}, epoch {task.epoch}, partition {task.partition}"
        errors = RowErrors(who, self.options.redact)
        aside = TaskAside(self, task) if self.collects_bad_rows else None
        rows = cast(batches, arrow)
        if aside is None:
            rows = keyed(rows, self.options.key, errors)
        elif self.options.key:
            rows = Numbered(partial(refuse_null_keys, key=self.options.key), NullKey, aside.row).good(rows)
        inline, first = gather(rows, arrow, self.options.inline_size)
        if inline is not None:
            return inline if inline.rows else None
        every = itertools.chain(first, rows)
        with self._in_session(task.incarnation, who) as connection:
            table = self._usable(connection, schema, who, task.mark)
            identity = Identity(task.sink, str(table.name))
            origin = Origin.task(identity, task)
            if not self.options.prepared:
                bad = None if aside is None else aside.rows
                return stage(connection, table, schema.names, every, origin, errors, self.options.lock_timeout, bad)
            self._refuse_prepared_without_copy(table, who)
            make_way(connection, identity, origin, partial(self._fence, identity, task.mark, who))
            record.begin(connection, self.options.lock_timeout)
            record.refuse_fenced(connection, identity, task.mark, who)
            return prepare(connection, identity, table, schema.names, every, origin, task.mark, errors)

    def commit(self, schema: StructType, epoch: Epoch, prepared: Sequence[Part]) -> CommitOutcome:
        """Commit all rows of the epoch and its record in one transaction; see `commit`."""
        who = f"{self._who}, epoch {epoch.number}"
        schema = renamed(schema, self.options.column_map, who)
        with self._in_session(epoch.incarnation, who) as connection:
            table = self._usable(connection, schema, who, epoch.mark)
            committer = self._committer(connection, table, tuple(schema.names), who, epoch.mark)
            return committer.commit(epoch, prepared)

    def kept_bad_rows(self, epoch: Epoch) -> int | None:
        """The mark in the sink's record, which is that of the table in which the epoch was found."""
        with self._in_session(epoch.incarnation) as connection:
            table = look_up(connection, self._table, self._who)
            if table is None:
                raise not_the_target("the table does not exist", self._who)
            identity = Identity(epoch.sink, str(table.name))
            if record.last(connection, identity, epoch) < epoch.number:
                # Without its record nobody knows whether rows of it are bad.
                raise not_the_target(f"it has no record of epoch {epoch.number}, which it held before", self._who)
            return record.mark(connection, identity, epoch)

    # -- shared --------------------------------------------------------------------------------------------------------

    @contextmanager
    def _in_session(self, incarnation: int, who: str | None = None) -> Iterator[psycopg.Connection[Any]]:
        """A kept connection, with the sink's record created; errors inside are converted."""
        who = who or self._who
        name = record.application(self._mark, incarnation)

        def begin(connection: psycopg.Connection[Any]) -> None:
            self._limit(connection)
            record.ensure(connection)

        with (
            translated(who, NOTHING_VISIBLE, redact=self.options.redact),
            session(self._server, name, who, begin) as connection,
        ):
            yield connection

    def _limit(self, connection: psycopg.Connection[Any]) -> None:
        if self.options.statement_timeout is not None:
            connection.execute(f"SET statement_timeout = {int(self.options.statement_timeout)}")

    @contextmanager
    def _fence(self, identity: Identity, mark: FenceMark, who: str) -> Iterator[psycopg.Connection[Any]]:
        """Another connection that holds the sink's row until the end of the block."""
        with self._server.connect(record.application(self._mark, mark.incarnation)) as connection:
            self._limit(connection)
            record.begin(connection, self.options.lock_timeout)
            record.refuse_older(record.lock(connection, identity).mark, mark, who)
            yield connection
            connection.execute("ROLLBACK")

    @property
    def _mark(self) -> str:
        """The mark of this sink's connections, from the table's name in the options, as they precede its look-up."""
        return Identity(self.options.uid, str(self._table)).mark

    def _usable(self, connection: psycopg.Connection[Any], schema: StructType, who: str, mark: FenceMark) -> Table:
        options = self.options
        if mark.start and look_up(connection, self._table, who) is None:
            raise not_the_target("the table does not exist", who)
        grow = options.schema_evolution == "add_columns" and not mark.start
        make = options.create_table and not mark.start
        return usable(connection, self._table, schema, options.key, who, make=make, grow=grow)

    def _committer(
        self, connection: psycopg.Connection[Any], table: Table, columns: tuple[str, ...], who: str, mark: FenceMark
    ) -> Committer:
        from spark_ext.sinks.postgres_2pc.commit import Aside, Committer, Upsert

        options = self.options
        identity = Identity(options.uid, str(table.name))
        return Committer(
            connection,
            identity,
            table,
            columns,
            Upsert(options.key, options.newest_by) if options.mode == "upsert" else None,
            RowErrors(who, options.redact),
            options.lock_timeout,
            partial(self._fence, identity, mark, who),
            options.statements,
            Aside(self.bad_row, self.keep_bad_rows, options.redact) if self.collects_bad_rows else None,
        )
