"""The tables of docs/values.md, from the table that the tests measure: `python -m tests.values.page docs/values.md`."""

import re
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.values.table import LEGEND, LIMITS, ODD, SAME, SINKS, SOURCES, TYPES, VALUES, Cells, Row

_SECTION = re.compile(r"(<!-- (\w+) -->\n).*?(<!-- end of \2 -->)", re.DOTALL)
_RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def _notes(name: str, row: Row) -> str:
    found = (str(n) for n, limit in enumerate(LIMITS, 1) if name in limit.sinks and row in limit.rows)
    return "".join(found).translate(_RAISED)


def _table(columns: Mapping[str, Cells], rows: Sequence[Row]) -> list[str]:
    lines = [f"| type | values | {' | '.join(columns)} |", "|---" * (len(columns) + 2) + "|"]
    before = ""
    for row in rows:
        cells = [cells.get(row, SAME) + _notes(name, row) for name, cells in columns.items()]
        lines.append(f"| {row.type if row.type != before else ''} | {row.what} | {' | '.join(cells)} |")
        before = row.type
    return lines


def sections() -> dict[str, list[str]]:
    return {
        "legend": ["| in a cell | means |", "|---|---|", *(f"| {word} | {what} |" for word, what in LEGEND.items())],
        "sources": _table(SOURCES, (*VALUES, *ODD, *TYPES)),
        "sinks": _table(SINKS, (*VALUES, *TYPES)),
        "limits": [
            line
            for n, one in enumerate(LIMITS, 1)
            for line in textwrap.wrap(f"{n}. {' and '.join(one.clients)}: {one.why}.", 120, subsequent_indent="   ")
        ],
    }


def written(page: str) -> str:
    made = sections()
    return _SECTION.sub(lambda found: "\n".join([found[1], *made[found[2]], "", found[3]]), page)


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(written(path.read_text(encoding="utf-8")), encoding="utf-8")
