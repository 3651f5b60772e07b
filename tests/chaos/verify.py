"""What must be true of a job's outputs and ledger once it has ended, whatever was killed while it ran.

Everything is compared by content. Each function returns a list of faults, described in words.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from urllib.parse import unquote

import pandas as pd
import pyarrow as pa
from deltalake import DeltaTable

from spark_ext.datafiles.writer import owner_of
from spark_ext.model.lifecycle import FinalStep
from tests.support import validators
from tests.support.history import History


class Content:
    """All rows of a table by their hash, each with its number of occurrences."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table.select(sorted(table.column_names))
        columns: dict[str, object] = {}
        for number, column in enumerate(self._table.columns):
            columns[f"{number}"] = column.to_pandas()
            # In pandas a null in a column of numbers is a NaN.
            columns[f"{number} is null"] = column.is_null().to_pandas()
        self._hashes = pd.util.hash_pandas_object(pd.DataFrame(columns), index=False).to_numpy()
        self.rows: Counter[int] = Counter(self._hashes.tolist())

    @classmethod
    def delta(cls, path: Path) -> Content:
        """The content of a Delta table."""
        return cls(DeltaTable(path).to_pyarrow_table())

    @property
    def total(self) -> int:
        """Number of rows."""
        return self._table.num_rows

    def row(self, wanted: int) -> str:
        """A row by its hash, for a message."""
        place = int((self._hashes == wanted).argmax())
        return str(self._table.slice(place, 1).to_pylist()[0])


def differences(name: str, found: Content, expected: Content) -> list[str]:
    """Differences between a table and that of an undisturbed run."""
    missing, extra = expected.rows - found.rows, found.rows - expected.rows
    out = []
    if missing:
        out.append(f"{name}: {missing.total():,} rows missing, such as {expected.row(next(iter(missing)))}")
    if extra:
        twice = sum(1 for row in extra if row in expected.rows)
        out.append(
            f"{name}: {extra.total():,} rows too many, {twice:,} repeated, such as {found.row(next(iter(extra)))}"
        )
    return out


def leftovers(name: str, path: Path, uid: str, *, late_tasks: bool) -> list[str]:
    """Data files of dead incarnations that no commit refers to.

    A file of the incarnation that wrote last is allowed: a repeated task leaves one, and the next claim removes it.

    Args:
        name: name of the table, for the message.
        path: its directory.
        uid: uid of the sink.
        late_tasks: whether tasks of a dead driver could continue to write for a moment, as on a cluster.
    """
    table = DeltaTable(path)
    # What a commit has added is not left over, even if it was removed since: older versions consist of it.
    commits = [path / "_delta_log" / f"{version:020}.json" for version in range(table.version() + 1)]
    lines = (json.loads(line) for commit in commits if commit.exists() for line in commit.read_text().splitlines())
    referred = {unquote(line["add"]["path"]).rpartition("/")[2] for line in lines if "add" in line}
    referred |= {unquote(uri).rpartition("/")[2] for uri in table.file_uris()}
    holder = table.transaction_version(f"fence:{uid}") or 0
    out = []
    for file in path.rglob("*.parquet"):
        owner = owner_of(file.name)
        if file.name in referred or "_delta_log" in file.parts or owner is None:
            continue
        if owner[1] < holder and not late_tasks:
            out.append(
                f"{name}: {file.name} of dead incarnation {owner[1]} was left; the table is incarnation {holder}'s"
            )
    return out


def ledger_problems(state: Path | str, queries: tuple[str, ...], starts: int) -> list[str]:
    """Faults in the history of a job that should have finished, as any reader of its state sees it."""
    history = History.read(state)
    out = [f"ledger: {problem}" for problem in validators.problems(history)]
    numbers = {row.incarnation for row in history.jobs if row.event == "started"}
    if len(numbers) > starts:
        out.append(f"ledger: incarnations {sorted(numbers)} after {starts} starts")
    for query in queries:
        if len(history.finals(query)) != len(FinalStep):
            out.append(f"ledger: the final checkpoint of '{query}' has {len(history.finals(query))} steps")
    if set(history.finished_queries) != set(queries):
        out.append(f"ledger: of {queries} only {history.finished_queries} are flagged as finished")
    return out
