"""The options of `postgres_2pc`."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from spark_ext.clients.postgres.connection import ColumnName, ColumnNames, ConnectionOptions, Name
from spark_ext.options import Bytes, Milliseconds
from spark_ext.sinks.contract import SinkOptions
from spark_ext.sinks.postgres_2pc.columns import mapping
from spark_ext.sinks.postgres_2pc.statements import Statements, check


class PostgresSinkOptions(SinkOptions, ConnectionOptions):
    """Options of `postgres_2pc`."""

    identity_fields: ClassVar[frozenset[str]] = frozenset({"table"})

    table: str
    """Name of the table, `orders` or `shop.orders`; case-sensitive, with special names in double quotes."""

    mode: Literal["append", "upsert"] = "append"
    """Whether rows are added, or replace those with the same key."""

    key: ColumnNames = ()
    """For `upsert`: the key columns, comma-separated; the table needs a primary key or unique index on them."""

    latest_by: ColumnName | None = None
    """For `upsert`: of several rows with the same key, the one with the greatest value in this column is kept. Without
    it an epoch with several rows of the same key is refused."""

    prepared: bool = False
    """Whether tasks copy directly into the table, in prepared transactions, instead of staging tables."""

    create_table: bool = True
    """Whether to create the table, with the columns of the rows, if it does not exist."""

    inline_size: Bytes = 64 * 1024
    """Maximum size of a task's rows that are sent with its commit message, bytes; 0: never."""

    lock_timeout: Milliseconds = 30_000
    """Time limit for a lock on the table or the sink's record, ms; then the epoch is retried."""

    statement_timeout: Milliseconds | None = None
    """Time limit for a statement, ms; then the epoch is retried. 0: none; default: that of the server."""

    column_map: Annotated[dict[str, str], BeforeValidator(mapping)] = Field(default_factory=dict)
    """Names of columns in the table by their names in the rows, as `a=x, b=y` or as a JSON object; the other columns
    keep their names. `key` and `latest_by` are names in the table."""

    schema_evolution: Literal["refuse", "add_columns"] = "refuse"
    """What is done about columns that the table lacks: a start is refused, or adds them, as nullable ones."""

    setup_sql: str | None = None
    """Statements that run once for the table and the uid, before the first epoch."""

    pre_sql: str | None = None
    """Statements that run in the transaction of each epoch, before its rows."""

    post_sql: str | None = None
    """Statements that run in the transaction of each epoch, after its rows."""

    redact: bool = False
    """Whether errors omit values of rows."""

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
        if self.mode == "append" and (self.key or self.latest_by):
            raise ValueError("key and latest_by require mode=upsert")
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
