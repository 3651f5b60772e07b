"""The versions of a table that was put back: they begin with a number that its predecessor in the place never had.

A writer of the predecessor may have been frozen in the middle of its commit, and continues when the table has been
replaced: it creates the log file of the predecessor's next version. In a log that has fewer versions that file would be
the newest, with a gap before it, and the table could not be opened any more. In a log that begins with a checkpoint of
a later version it is an old file, which is ignored.

A table's log may begin so, because old log files are deleted after a while in any case.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from spark_ext.datafiles.copies import put_copy
from spark_ext.datafiles.exclusive import replace

if TYPE_CHECKING:
    from pathlib import Path

    from deltalake import DeltaTable

_LAST = "_last_checkpoint"


def first_version(last: int) -> int:
    """A version that a table with entries below this number cannot have.

    Each entry is a version. There is at most one removal for each release, and one new description for each claim; so
    entries that were written one by one have less than three versions each, and a table that was put back before begins
    with four for each number.
    """
    return 4 * (last + 4)


def begin_at(folder: Path, table: DeltaTable, version: int) -> None:
    """Give the newest version of a table another number, and forget all before it. Repeated, it completes the work."""
    here = table.version()
    if here < version:
        table.create_checkpoint()
        for ending in ("checkpoint.parquet", "json"):
            put_copy(str(folder / f"{here:020}.{ending}"), str(folder / f"{version:020}.{ending}"))
        known = json.loads((folder / _LAST).read_text(encoding="utf-8"))
        replace(folder / _LAST, json.dumps({**known, "version": version}), "0")
    for file in folder.iterdir():
        number = file.name.split(".")[0]
        if number.isdigit() and int(number) < version:
            file.unlink(missing_ok=True)
