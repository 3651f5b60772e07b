"""Names of tables and columns as users write them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, BeforeValidator

if TYPE_CHECKING:
    from psycopg import sql

_PART = r'"((?:[^"]|"")+)"|([^."\s]+)'
_NAME = re.compile(rf"(?:(?:{_PART})\.)?(?:{_PART})")
_COLUMN = re.compile(r'\s*(?:"((?:[^"]|"")+)"|([^,]*?))\s*(?:,|$)')

LONGEST = 63
"""Bytes of a name; the server cuts longer ones off."""


def columns(text: str) -> tuple[str, ...]:
    """`a, "B, c"` as `("a", "B, c")`; unquoted names are taken as they are."""
    found = (quoted.replace('""', '"') or plain for quoted, plain in _COLUMN.findall(text))
    return tuple(name for name in found if name)


def _column(text: str) -> str:
    found = _COLUMN.fullmatch(text)
    return found[1].replace('""', '"') if found is not None and found[1] else text


ColumnNames = Annotated[
    tuple[str, ...], BeforeValidator(lambda value: columns(value) if isinstance(value, str) else value)
]
"""Columns, comma-separated, with special names in double quotes."""

ColumnName = Annotated[str, AfterValidator(_column)]
"""One column; a special name may be in double quotes."""


@dataclass(frozen=True)
class Name:
    """A table's name as the user wrote it: `table` or `schema.table`, with special names in double quotes."""

    schema: str | None
    table: str

    @classmethod
    def parse(cls, text: str) -> Name:
        """Parse a name; unquoted parts are taken as they are, not folded to lower case."""
        found = _NAME.fullmatch(text.strip())
        if found is None:
            raise ValueError(f"{text!r} is not a table's name such as 'orders' or 'shop.orders'")
        schema, table = (
            (quoted.replace('""', '"') if quoted else plain)
            for quoted, plain in ((found[1], found[2]), (found[3], found[4]))
        )
        for part in (schema, table):
            if part and len(part.encode()) > LONGEST:
                raise ValueError(f"{part!r} is too long: names in PostgreSQL have at most {LONGEST} bytes")
        return cls(schema, table)

    def __str__(self) -> str:
        return f"{self.schema}.{self.table}" if self.schema else self.table

    @property
    def identifier(self) -> sql.Identifier:
        """Quoted, for statements."""
        from psycopg import sql

        return sql.Identifier(self.schema, self.table) if self.schema else sql.Identifier(self.table)
