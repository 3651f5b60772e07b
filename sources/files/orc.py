"""ORC files by row number: the tail for planning, stripes for splitting and reading."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache

import pyarrow as pa
from pyarrow import orc, types

from spark_ext.datafiles.input_file import InputFile
from spark_ext.errors import EnvironmentProblem
from spark_ext.schemas.casts import replaced
from spark_ext.schemas.columns import match, misfit
from spark_ext.schemas.values import undecodable
from spark_ext.sources.files.legacy_calendar import Calendar
from spark_ext.sources.files.orc_footer import Tail, read_tail, time_zones
from spark_ext.sources.files.row_groups import EMPTY, Footer, OnBadRow, RowGroupsFormat, no_columns, refuse_misfit

BATCH_ROWS = 65_536
_UTC = frozenset({"", "UTC", "GMT", "Z", "Etc/UTC", "Etc/GMT", "Zulu", "UCT", "Universal"})

_JULIAN = Calendar(dates=True, instants=True, int96=True, zone="UTC")  # ORC's times of day need no zone
_SPARKS_TYPE = b"spark.sql.catalyst.type"

_LEAVES = (True,) * 10_000


def read_footer(file: InputFile) -> Footer:
    """Read the rows and sizes of the stripes, and the columns."""
    file.verify()
    if not file.size:
        return EMPTY
    with file.faults(), file.open() as raw:
        tail = read_tail(raw, file.size)
        found = orc.ORCFile(raw)
        if (found.nstripes, found.nrows) != (len(tail.stripes), tail.rows):
            raise ValueError("its stripes are not those of its footer")
        rows, sizes = [stripe.rows for stripe in tail.stripes], [stripe.size for stripe in tail.stripes]
        return Footer.of(rows, sizes, file.size, columns_in(found))


def columns_in(found: orc.ORCFile) -> pa.Schema:
    """The file's columns; Spark writes a timestamp without a zone as microseconds, with a note of its type."""
    fields = []
    for field in found.schema:
        local = types.is_int64(field.type) and (field.metadata or {}).get(_SPARKS_TYPE) == b"timestamp_ntz"
        fields.append(pa.field(field.name, pa.timestamp("us") if local else field.type))
    return pa.schema(fields)


class OrcFormat(RowGroupsFormat):
    """ORC files by stripes."""

    read_footer = staticmethod(read_footer)

    def _check(self, file: InputFile, footer: Footer) -> None:
        super()._check(file, footer)
        if footer is not EMPTY and self._takes_for_instants(footer.schema):
            with file.faults(), file.open() as raw:
                zones = time_zones(raw, read_tail(raw, file.size))
            self._refuse_zones(file, zones)

    def _convert(self, rows: pa.RecordBatch, constants: Mapping[str, str | None]) -> pa.RecordBatch:
        found = super()._convert(rows, constants)
        if (column := undecodable(found)) is not None:
            raise pa.ArrowInvalid(f"column '{column}' has a text that is not UTF-8")
        return found

    def _takes_for_instants(self, found: pa.Schema) -> bool:
        """Whether times of day without a zone are declared as instants."""
        return any(
            (name := match(field.name, found.names)) is not None and _gains_a_zone(found.field(name).type, field.type)
            for field in self._wanted
        )

    @staticmethod
    def _refuse_zones(file: InputFile, zones: set[str]) -> None:
        other = sorted(zones - _UTC)
        if other:
            raise file.refusal(
                f"its timestamps are times of day in the time zone {', '.join(other)}, and declared as instants",
                "declare the columns as timestamp_ntz, and convert them in the query, with to_utc_timestamp",
            )

    def _rows(
        self, file: InputFile, start: int, end: int | None, keep: pa.Array | None, bad: OnBadRow
    ) -> Iterator[pa.RecordBatch]:
        assert keep is None, "no table format has ORC files with deleted rows here"
        with file.faults(), file.open() as raw:
            tail = read_tail(raw, file.size)
            found = orc.ORCFile(raw)
            schema = columns_in(found)
            refuse_misfit(file, misfit(schema, self._wanted, file.constants))
            if self._takes_for_instants(schema):
                self._refuse_zones(file, time_zones(raw, tail))
            if any(_has_times(field.type) for field in found.schema) and _wraps_times():
                raise EnvironmentProblem(
                    f"pyarrow {pa.__version__} reads timestamps of ORC files before 1677 and after 2262 as other ones",
                    operator=f"source '{file.uid}'",
                    kept="nothing of this epoch was read",
                    do="pip install --upgrade pyarrow",
                )
            names = [match(name, schema.names) for name in self._wanted.names if name not in file.constants]
            first = 0
            for index, stripe in enumerate(tail.stripes):
                if start < first + stripe.rows and (end is None or end > first):
                    batch = self._stripe(file, found, tail, index, schema, [name for name in names if name])
                    low = max(start - first, 0)
                    high = stripe.rows if end is None else min(end - first, stripe.rows)
                    for at in range(low, high, BATCH_ROWS):
                        piece = batch.slice(at, min(BATCH_ROWS, high - at))
                        yield from self._converted(file, piece, file.constants, first + at, bad)
                first += stripe.rows

    @staticmethod
    def _stripe(
        file: InputFile, found: orc.ORCFile, tail: Tail, index: int, schema: pa.Schema, names: list[str]
    ) -> pa.RecordBatch:
        rows = tail.stripes[index].rows
        if not names:
            return no_columns(rows)
        # A name with a dot stands for a field of a struct.
        batch = found.read_stripe(index, columns=None if any("." in name for name in names) else names)
        if batch.num_rows != rows:
            raise file.refusal(
                f"it is damaged: stripe {index} has {batch.num_rows} of {rows} rows",
                "replace it with an undamaged copy, and start again with changed_files=accept",
            )
        for column in batch.columns:  # of a damaged file a list may end before it begins; text is checked row by row
            column.view(replaced(column.type, _without_text)).validate(full=True)
        if not tail.gregorian:
            batch = _JULIAN.rebased(batch, dict.fromkeys(batch.schema.names, _LEAVES))
        fields = [schema.field(name) for name in batch.schema.names]
        columns = [
            column.view(field.type) if types.is_int64(column.type) and types.is_timestamp(field.type) else column
            for column, field in zip(batch.columns, fields, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _without_text(kind: pa.DataType) -> pa.DataType:
    return pa.binary() if types.is_string(kind) else kind


def _gains_a_zone(found: pa.DataType, wanted: pa.DataType) -> bool:
    if types.is_timestamp(found):
        return bool(types.is_timestamp(wanted) and found.tz is None and wanted.tz is not None)
    if types.is_struct(found) and types.is_struct(wanted):
        return any(
            found.get_field_index(child.name) >= 0 and _gains_a_zone(found.field(child.name).type, child.type)
            for child in wanted
        )
    if types.is_map(found) and types.is_map(wanted):
        return _gains_a_zone(found.key_type, wanted.key_type) or _gains_a_zone(found.item_type, wanted.item_type)
    if types.is_list(found) and types.is_list(wanted):
        return _gains_a_zone(found.value_type, wanted.value_type)
    return False


def _has_times(kind: pa.DataType) -> bool:
    return bool(types.is_timestamp(kind)) or any(_has_times(kind.field(at).type) for at in range(kind.num_fields))


@cache
def _wraps_times() -> bool:
    """Whether this pyarrow reads a time that does not fit 64 bits of nanoseconds as another one, as older ones do."""
    sink = pa.BufferOutputStream()
    orc.write_table(pa.table({"t": pa.array([253_402_214_400_000_000], pa.timestamp("us"))}), sink)
    try:
        orc.ORCFile(pa.BufferReader(sink.getvalue())).read()
    except pa.ArrowInvalid:
        return False
    return True
