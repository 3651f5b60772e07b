"""What must be true of a job's outputs and ledger once it has ended; each function returns faults, in words."""

import json
from collections import Counter
from collections.abc import Iterable
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
    def delta(cls, path: Path | str) -> "Content":
        return cls(DeltaTable(path).to_pyarrow_table())

    @property
    def total(self) -> int:
        return self._table.num_rows

    def row(self, wanted: int) -> str:
        return str(self._table.slice(int((self._hashes == wanted).argmax()), 1).to_pylist()[0])


def differences(name: str, found: Content, expected: Content) -> list[str]:
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


def leftovers(name: str, path: Path, uid: str) -> list[str]:
    """Data files of dead incarnations in a local table."""
    table = DeltaTable(path)
    # What a commit has added is not left over, even if it was removed since: older versions consist of it.
    commits = [path / "_delta_log" / f"{version:020}.json" for version in range(table.version() + 1)]
    log = [commit.read_text() for commit in commits if commit.exists()]
    files = [file.name for file in path.rglob("*.parquet") if "_delta_log" not in file.parts]
    return [f"{name}: {problem}" for problem in dead_files(table, uid, log, files)]


def dead_files(table: DeltaTable, uid: str, log: Iterable[str], files: Iterable[str]) -> list[str]:
    """Data files of dead incarnations that neither the table nor its log refers to.

    A file of the incarnation that wrote last is allowed: a repeated task leaves one, and the next claim removes it.
    """
    lines = (json.loads(line) for commit in log for line in commit.splitlines())
    paths = [*(line["add"]["path"] for line in lines if "add" in line), *table.file_uris()]
    referred = {unquote(path).rpartition("/")[2] for path in paths}
    holder = table.transaction_version(f"fence:{uid}") or 0
    out = []
    for file in files:
        name = file.rpartition("/")[2]
        owner = owner_of(name)
        if owner is not None and name not in referred and owner[1] < holder:
            out.append(f"{file} of dead incarnation {owner[1]} was left; the table is incarnation {holder}'s")
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
