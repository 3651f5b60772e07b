"""What has to hold of a job's outputs and ledger once it has ended, whatever was killed on the way.

Everything is compared by content. Each function returns what is wrong, in words; nothing wrong is an empty list.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from urllib.parse import unquote

import pandas as pd
import pyarrow as pa
from deltalake import DeltaTable

from spark_ext.datafiles.writer import owner_of
from spark_ext.ledger import Ledger
from spark_ext.model.lifecycle import FinalStep


class Content:
    """All rows of a table by a hash of each, with how often it is there."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table.select(sorted(table.column_names))
        columns: dict[str, object] = {}
        for number, column in enumerate(self._table.columns):
            columns[f"{number}"] = column.to_pandas()
            # In pandas a null among numbers is a NaN.
            columns[f"{number} is null"] = column.is_null().to_pandas()
        self._hashes = pd.util.hash_pandas_object(pd.DataFrame(columns), index=False).to_numpy()
        self.rows: Counter[int] = Counter(self._hashes.tolist())

    @classmethod
    def delta(cls, path: Path) -> Content:
        """Of a Delta table."""
        return cls(DeltaTable(path).to_pyarrow_table())

    @property
    def total(self) -> int:
        """How many rows."""
        return self._table.num_rows

    def row(self, wanted: int) -> str:
        """A row by its hash, for a message."""
        place = int((self._hashes == wanted).argmax())
        return str(self._table.slice(place, 1).to_pylist()[0])


def differences(name: str, found: Content, expected: Content) -> list[str]:
    """How a table differs from that of an undisturbed run."""
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

    A file of the incarnation that wrote last may be there: a task that was repeated leaves one, and the next claim
    would remove it.

    Args:
        name: of the table, for the message.
        path: its folder.
        uid: of the sink.
        late_tasks: whether tasks of a dead driver could go on writing for a moment, as on a cluster.
    """
    table = DeltaTable(path)
    referred = {unquote(uri).rpartition("/")[2] for uri in table.file_uris()}
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


def ledger_problems(state: Path, queries: tuple[str, ...], starts: int) -> list[str]:
    """What is wrong with a finished job's ledger, as any reader sees it."""
    ledger = Ledger(str(state))
    out = []
    numbers = [row.incarnation for row in ledger.jobs() if row.event == "started"]
    if sorted(numbers) != list(range(1, len(numbers) + 1)) or len(numbers) > starts:
        out.append(f"ledger: incarnations {sorted(numbers)} after {starts} starts")
    for query in queries:
        finals = [row for row in ledger.checkpoints(query) if row.kind == "final"]
        # Four steps, in their order, each once, all of one checkpoint: a crash repeats none that was recorded.
        if [row.status for row in finals] != [step.value for step in FinalStep]:
            out.append(f"ledger: the final checkpoint of '{query}' has {[row.status for row in finals]}")
        if len({row.checkpoint_id for row in finals}) > 1:
            out.append(f"ledger: '{query}' has several final checkpoints")
    flags = Counter((row.kind, row.query, row.source, row.channel, row.lineage) for row in ledger.finished_flags())
    repeated = [key for key, count in flags.items() if count > 1]
    if repeated:
        out.append(f"ledger: {len(repeated)} flags repeated, such as {repeated[0]}")
    if {row.query for row in ledger.finished_flags() if row.kind == "query"} != set(queries):
        out.append(f"ledger: not every query of {queries} is flagged as finished")
    epochs = [(row.query, row.lineage, row.epoch) for row in ledger_epochs(ledger)]
    twice = [key for key, count in Counter(epochs).items() if count > 1]
    if twice:
        out.append(f"ledger: {len(twice)} epochs recorded twice, such as {twice[0]}")
    return out


def ledger_epochs(ledger: Ledger) -> list[object]:
    """All rows of the ledger's history of epochs."""
    from spark_ext.ledger.schema import EpochRow

    return list(ledger.table(EpochRow).rows())
