"""The windows that a job of `connect_client` has written, and those that follow from its rows."""

from pathlib import Path
from typing import Any

from deltalake import DeltaTable


def windows(folder: Path) -> list[tuple[Any, ...]]:
    table = DeltaTable(folder / "counts").to_pandas()
    return sorted(zip(table["start"].astype("int64"), table["key"], table["n"], table["sum"], strict=True))


def expected(folder: Path) -> list[tuple[Any, ...]]:
    rows = DeltaTable(folder / "copies").to_pandas()
    assert len(rows) == 4000
    rows["start"] = rows["ts"].dt.floor("1min")
    found = rows.groupby(["start", "key"]).agg(n=("seq", "size"), sum=("seq", "sum")).reset_index()
    return sorted(zip(found["start"].astype("int64"), found["key"], found["n"], found["sum"], strict=True))
