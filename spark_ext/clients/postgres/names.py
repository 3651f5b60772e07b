"""Names of tables as users write them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from psycopg import sql

_PART = r'"((?:[^"]|"")+)"|([^."\s]+)'
_NAME = re.compile(rf"(?:(?:{_PART})\.)?(?:{_PART})")


@dataclass(frozen=True)
class Name:
    """A table's name as the user wrote it: `table` or `schema.table`, with special names in double quotes."""

    schema: str | None
    table: str

    @classmethod
    def parse(cls, text: str) -> Name:
        """Parse a name; unquoted parts are taken as they are, not folded to lower case.

        Raises:
            ValueError: it is not a table's name.
        """
        found = _NAME.fullmatch(text.strip())
        if found is None:
            raise ValueError(f"{text!r} is not a table's name such as 'orders' or 'shop.orders'")
        schema, table = (
            (quoted.replace('""', '"') if quoted else plain)
            for quoted, plain in ((found[1], found[2]), (found[3], found[4]))
        )
        return cls(schema, table)

    def __str__(self) -> str:
        return f"{self.schema}.{self.table}" if self.schema else self.table

    @property
    def identifier(self) -> sql.Identifier:
        """Quoted, for statements."""
        from psycopg import sql

        return sql.Identifier(self.schema, self.table) if self.schema else sql.Identifier(self.table)
