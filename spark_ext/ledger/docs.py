"""The reference of the ledger's tables, from the row types: `python -m spark_ext.ledger.docs docs/ledger.md`."""

from __future__ import annotations

import sys
from pathlib import Path

from spark_ext.ledger.columns import describe
from spark_ext.ledger.schema import ROWS

BEGIN = "<!-- tables: begin (generated) -->"
END = "<!-- tables: end -->"


def tables_markdown() -> str:
    """One section per table, one line per column."""
    parts = []
    for row_type in ROWS:
        what, lines = describe(row_type)
        parts.append(f"### {row_type.table}\n\n{what}\n\n| column | type | meaning |\n|---|---|---|")
        parts[-1] += "".join(f"\n| `{name}` | {kind} | {meaning} |" for name, kind, meaning in lines)
    return "\n\n".join(parts)


def renewed(page: str) -> str:
    """The page with its generated part up to date."""
    head, _, rest = page.partition(BEGIN)
    return f"{head}{BEGIN}\n\n{tables_markdown()}\n\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.write_text(renewed(target.read_text()))
