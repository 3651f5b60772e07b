"""Options of `postgres`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from spark_ext.clients.postgres.connection import ColumnName, ColumnNames, ConnectionOptions, Name
from spark_ext.options import Milliseconds
from spark_ext.sources.contract import SourceOptions
from spark_ext.sources.spark_names import JDBC


class PostgresOptions(SourceOptions, ConnectionOptions):
    """Options of `postgres`."""

    foreign_names: ClassVar[Mapping[str, str]] = JDBC
    identity_fields: ClassVar[frozenset[str]] = frozenset(
        {"incremental", "incremental_column", "query", "table", "where"}
    )

    table: str | None = None
    """Name of the table, `orders` or `shop.orders`; case-sensitive, with special names in double quotes."""
    query: str | None = None
    """Instead of a table: a SELECT that returns the same rows each time."""
    key: str | None = None
    """Unique column without nulls by which the table is divided, or several, comma-separated, that are unique
    together; default: the primary key, or another unique column if it has several."""
    columns: ColumnNames = ()
    """The columns to read, comma-separated; default: all."""
    where: str | None = None
    """Of a table: the condition of the rows to read, as SQL, such as `region = 'EU'`; default: all."""
    rows_per_channel: int = Field(default=250_000, gt=0)
    """Approximate number of rows per range, by the server's statistics; there are at most 1,000 ranges."""
    incremental: Literal["none", "column", "xmin"] = "none"
    """Whether to continue after the existing rows: by an increasing column, or by the transaction that wrote a row."""
    incremental_column: ColumnName | None = None
    """For `incremental=column`: a column that increases over time, such as a sequence's number; preferably indexed."""
    incremental_unique: bool = False
    """Whether the values of `incremental_column` are unique although no unique index and no key says so."""
    poll_interval: Milliseconds = 1000
    """How often an incremental source looks for new rows, ms."""
    settle_timeout: Milliseconds = 60_000
    """For `incremental=column`: how long the start waits for transactions that were open before it, ms."""
    lock_timeout: Milliseconds = Field(default=30_000, gt=0)
    """How long to wait for a lock on the table, which a statement such as ALTER TABLE holds or waits for, ms."""
    statement_timeout: Milliseconds | None = None
    """How long a statement of the planner or of a task may take, ms; 0: without a limit; default: as the server has
    it."""

    @field_validator("where")
    @classmethod
    def _is_a_condition(cls, value: str | None) -> str | None:
        if value is not None and not value.strip():
            raise ValueError("it is empty")
        return None if value is None else value.strip()

    @field_validator("columns")
    @classmethod
    def _differ(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        twice = [name for name in value if value.count(name) > 1]
        if twice:
            raise ValueError(f"it has '{twice[0]}' twice")
        return value

    @field_validator("table")
    @classmethod
    def _is_a_name(cls, value: str | None) -> str | None:
        if value is not None:
            Name.parse(value)
        return value

    @model_validator(mode="after")
    def _together(self) -> PostgresOptions:
        if (self.table is None) == (self.query is None):
            raise ValueError("give either table or query")
        if self.query is not None and self.where is not None:
            raise ValueError("where needs a table: write the condition into the query")
        if self.query is not None and self.incremental != "none":
            raise ValueError("incremental needs a table, not a query")
        if (self.incremental == "column") != (self.incremental_column is not None):
            raise ValueError("incremental=column and incremental_column go together")
        if self.incremental_unique and self.incremental_column is None:
            raise ValueError("incremental_unique needs incremental_column")
        return self
