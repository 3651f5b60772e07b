"""What the columns of a table demand of each row: that a value is not null, or that a text is not too long.

Spark stores `char(n)` and `varchar(n)` as texts with the type in the column's metadata, which delta-rs ignores. As in
Spark, a longer text is refused, and a shorter one is stored as it is.

Where bad rows are put aside, tasks ask in each epoch, so each thread keeps a handle per table, and its answer for some
seconds. New rules are noticed by the commit, which compares columns and lengths.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_ext.delta.fenced_log import FencedLog
from spark_ext.errors import NOTHING_VISIBLE, DataError
from spark_ext.schemas.parquet_types import field_notes, from_delta

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from spark_ext.datafiles.writer import DataFile
    from spark_ext.delta.failures import LogErrors
    from spark_ext.storage import Location

LENGTH_NOTE: Final = "__CHAR_VARCHAR_TYPE_STRING"  # Metadata key: a column's type as declared to Spark
_LENGTH: Final = re.compile(r"(char|varchar)\((\d+)\)")


@dataclass(frozen=True)
class RowRules:
    """The rules of a table's columns."""

    not_null: frozenset[str] = frozenset()
    lengths: Mapping[str, tuple[str, int]] = field(default_factory=dict)  # `char` or `varchar`, and characters
    inside: str | None = None  # A column with such a length inside its type, which is not checked

    @classmethod
    def of(cls, schema: StructType) -> RowRules:
        """Those of a table's columns."""
        notes = {name: _LENGTH.fullmatch(note) for name, key, note in field_notes(schema) if key == LENGTH_NOTE}
        return cls(
            frozenset(column.name for column in schema.fields if not column.nullable),
            {name: (found[1], int(found[2])) for name, found in notes.items() if found},
            next((name for name, found in notes.items() if not found or name not in schema.names), None),
        )

    def check(self, batch: pa.RecordBatch, who: str) -> None:
        """Refuse rows that do not obey."""
        for name in self.not_null & set(batch.schema.names):
            if batch.column(name).null_count:
                raise _refused(f"column '{name}' may not be null in the table", f"coalesce({name}, ...)", who)
        for name in self.lengths.keys() & set(batch.schema.names):
            kind, length = self.lengths[name]
            longest = pc.max(pc.utf8_length(batch.column(name))).as_py() or 0
            if longest > length:
                what = f"column '{name}' is {kind}({length}) in the table, and a text has {longest} characters"
                raise _refused(what, f"left({name}, {length})", who)


def check_files(schema_json: str, location: Location, files: Iterable[DataFile], who: str) -> None:
    """Refuse texts that are longer than the table's columns, in files that are not committed yet."""
    if LENGTH_NOTE not in schema_json:
        return
    rules = RowRules(lengths=RowRules.of(from_delta(schema_json)).lengths)
    for file in files:
        values = [pa.record_batch({name: pa.array([text], pa.string())}) for name, text in file.partition.items()]
        with location.folder.open_input(file.path) as stream, pq.ParquetFile(stream) as parquet:
            columns = [name for name in rules.lengths if name in parquet.schema_arrow.names]
            for batch in chain(values, parquet.iter_batches(columns=columns)):
                rules.check(batch, who)


def _refused(what: str, fitting: str, who: str) -> DataError:
    return DataError(
        what,
        operator=who,
        kept=NOTHING_VISIBLE,
        do=f"change such values in the query, with {fitting} for example, filter them out, or alter the table's column",
    )


@dataclass
class _Asked:
    log: FencedLog
    until: float  # When the answer expires, s
    answer: RowRules = RowRules()


class _Kept(threading.local):
    def __init__(self) -> None:
        self.tables: dict[tuple[str, tuple[tuple[str, str], ...]], _Asked] = {}  # By URI and storage options


_kept = _Kept()

FRESH = 10.0  # How long an answer holds, s
_MAX_AGE = 3600.0  # Age at which a handle is opened again, s: the log may be cleaned up behind it


def row_rules(location: Location, errors: LogErrors, clock: Callable[[], float] = time.monotonic) -> RowRules:
    """The rules of a table's columns, as of at most `FRESH` ago; none without a table. `clock`: s; never goes back."""
    key = location.uri, tuple(sorted(location.storage_options.items()))
    now = clock()
    kept = _kept.tables.get(key)
    if kept is None:
        log = FencedLog(location.uri, errors, location.storage_options, required=False, max_age=_MAX_AGE)
        kept = _kept.tables[key] = _Asked(log, until=now)
    if now < kept.until:
        return kept.answer
    log = kept.log
    log.errors = errors
    log.notice_loss()
    log.refresh()
    if log.handle is None:
        return RowRules()
    kept.until = now + FRESH
    kept.answer = RowRules.of(from_delta(log.handle.schema().to_json()))
    return kept.answer
