"""What was added to a table since a version, from the newest entries of its log. Local logs only.

Bringing a handle of delta-rs up to date and scanning costs some 15 ms; an entry is a few lines of JSON.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from spark_ext.delta import light_arrow
from spark_ext.delta.entries import actions

_HARMLESS = frozenset({"commitInfo", "txn"})  # Actions that say nothing of rows


class Tail:
    """The entries of a local log behind a version. Columns of the schema that a file does not have are null."""

    def __init__(self, folder: Path, schema: pa.Schema) -> None:
        self._folder = folder
        self._schema = schema

    def after(self, version: int, most: int) -> tuple[int, pa.Table] | None:
        """The newest version, and the rows that the entries after a version have added.

        None when they have to be read in the ordinary way: an entry does more than to add rows or to compact
        files, there are too many, or a file is gone.
        """
        found: list[pa.Table] = []
        newest = version
        try:
            while self._entry(newest + 1).exists():
                if newest - version >= most:
                    return None
                names = _added(self._entry(newest + 1).read_text())
                if names is None:
                    return None
                found += [self._read(name) for name in names]
                newest += 1
        except (OSError, ValueError, KeyError, pa.ArrowException):
            # Whatever it is: the ordinary way either succeeds or says what is wrong.
            return None
        return newest, pa.concat_tables([light_arrow.empty(self._schema), *found])

    def _entry(self, version: int) -> Path:
        return self._folder / f"{version:020}.json"

    def _read(self, name: str) -> pa.Table:
        with pq.ParquetFile(self._folder.parent / unquote(name)) as file:  # `pq.read_table` imports pandas
            table = file.read()
        columns = [
            table.column(field.name).cast(field.type)
            if field.name in table.column_names
            else pa.nulls(table.num_rows, field.type)
            for field in self._schema
        ]
        return pa.Table.from_arrays(columns, schema=self._schema)


def _added(text: str) -> list[str] | None:
    """The files that an entry adds rows with; None if it does something else to the table's rows or columns."""
    names = []
    for kind, action in actions(text):
        if kind in _HARMLESS or (kind in ("add", "remove") and not action.get("dataChange", True)):
            continue
        if kind != "add" or action.get("deletionVector") or action.get("partitionValues"):
            return None
        names.append(action["path"])
    return names
