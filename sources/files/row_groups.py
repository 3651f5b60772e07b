"""Files of groups of rows (row groups of Parquet, stripes of ORC) by row number: planning reads their footers only."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate, islice, pairwise
from typing import TypeAlias

import pyarrow as pa

from spark_ext.bad_rows.sift import sift, text_of
from spark_ext.datafiles.input_file import InputFile
from spark_ext.model.offsets import Json
from spark_ext.schemas.columns import conform, misfit
from spark_ext.sources.contract import Advance, BadRow, Limit
from spark_ext.sources.positions import number_in

DECLARE_OTHERS = "declare the columns that all files have, or read this file with a source of its own"
OnBadRow: TypeAlias = Callable[[BadRow], object] | None  # takes a row that does not fit; None: it is refused


@dataclass(frozen=True, slots=True)
class Footer:
    """The parts of a file's footer that planning needs."""

    ends: tuple[int, ...]  # row number after each group
    sizes: tuple[int, ...]  # of each group, its part of the file's bytes by the uncompressed sizes
    schema: pa.Schema

    @classmethod
    def of(cls, rows: Sequence[int], sizes: Sequence[int], file_size: int, schema: pa.Schema) -> Footer:
        """What planning needs; all sizes in bytes."""
        share = file_size / max(1, sum(sizes))
        return cls(tuple(accumulate(rows)), tuple(int(size * share) for size in sizes), schema)

    @property
    def rows(self) -> int:
        """Number of rows of the file."""
        return self.ends[-1] if self.ends else 0

    def bytes_upto(self, row: int) -> float:
        """Bytes before a row, assuming that the rows of a group have the same size."""
        group = bisect_right(self.ends, row)
        before = float(sum(self.sizes[:group]))
        if group == len(self.ends):
            return before
        first = self.ends[group - 1] if group else 0
        return before + self.sizes[group] * (row - first) / (self.ends[group] - first)

    def row_at(self, size: float) -> int:
        """The last row before which there are at most `size` bytes."""
        totals = list(accumulate(self.sizes))
        group = bisect_right(totals, size)
        if group == len(totals):
            return self.rows
        first = self.ends[group - 1] if group else 0
        before = totals[group - 1] if group else 0
        share = (size - before) / self.sizes[group] if self.sizes[group] else 0.0
        return first + int(share * (self.ends[group] - first))


EMPTY = Footer((), (), pa.schema([]))  # the footer of an empty file, which Spark skips as well


class Footers:
    """The footers that planning needs, read a few files ahead: each takes a round trip to the storage."""

    def __init__(self, read: Callable[[InputFile], Footer], width: int = 8) -> None:
        self._read, self._width = read, width
        self._ahead: Iterator[InputFile] = iter(())
        self._reading: dict[str, Future[Footer]] = {}
        self._kept: dict[str, Footer] = {}
        self._pool: ThreadPoolExecutor | None = None

    def announce(self, files: Iterable[InputFile]) -> None:
        """Set the files that will be requested, in this order; replaces those announced before."""
        self._ahead = iter(files)

    def get(self, file: InputFile) -> Footer:
        """The footer of a file; kept until `forget`."""
        if file.path not in self._kept:
            self._fill()
            reading = self._reading.pop(file.path, None)
            self._kept[file.path] = reading.result() if reading else self._read(file)
        return self._kept[file.path]

    def forget(self, file: InputFile) -> None:
        """Drop the footer of a file whose planning is complete."""
        self._kept.pop(file.path, None)

    def _fill(self) -> None:
        for file in islice(self._ahead, max(0, 2 * self._width - len(self._reading))):
            if file.path not in self._kept and file.path not in self._reading:
                self._pool = self._pool or ThreadPoolExecutor(self._width, thread_name_prefix="footers")
                self._reading[file.path] = self._pool.submit(self._read, file)

    def __reduce__(self) -> tuple[object, ...]:
        return (Footers, (self._read, self._width))


class RowGroupsFormat(ABC):
    """Plans and reads files of groups of rows. Positions are row numbers.

    With `grown` a missing column is null, as in a Delta table to which columns were added; else the file is refused.
    """

    by_row = True  # whether positions are row numbers, not bytes

    def __init__(self, wanted: pa.Schema, *, grown: bool = False) -> None:
        self.footers = Footers(type(self).read_footer)
        self._wanted = wanted
        self._grown = grown
        self._checked: pa.Schema | None = None

    @staticmethod
    @abstractmethod
    def read_footer(file: InputFile) -> Footer:
        """Read a footer; that of a file of 0 bytes is `EMPTY`."""

    @abstractmethod
    def _rows(
        self, file: InputFile, start: int, end: int | None, keep: pa.Array | None, bad: OnBadRow
    ) -> Iterator[pa.RecordBatch]:
        """The rows [start, end) of a file that is not empty."""

    def advance(self, file: InputFile, start: int, limit: Limit) -> Advance:
        """The end of the next step; the row limit is exact, the byte limit uses the sizes of the groups."""
        footer = self.footers.get(file)
        self._check(file, footer)
        if start >= footer.rows:
            self.footers.forget(file)
            return Advance(start, True, rows=0, bytes=0)
        end = footer.rows
        before = footer.bytes_upto(start)
        if limit.rows is not None:
            end = min(end, start + limit.rows)
        if limit.bytes is not None:
            end = min(end, max(start + 1, footer.row_at(before + limit.bytes)))
        finished = end >= footer.rows
        if finished:
            self.footers.forget(file)
        return Advance(end, finished, rows=end - start, bytes=int(footer.bytes_upto(end) - before))

    def inspect(self, file: InputFile) -> None:
        """Refuse a file whose footer cannot be read, or whose columns do not fit."""
        self.advance(file, 0, Limit())

    def seek(self, file: InputFile, position: Json) -> int:
        """The number of a row."""
        return number_in(position, 0, self.footers.get(file).rows, "the number of a row of the file", file.operator)

    def split(self, file: InputFile, start: int, end: int, parts: int) -> Sequence[tuple[int, int]]:
        """Split at groups, into parts with about equal numbers of rows."""
        ends = self.read_footer(file).ends

        def near(ideal: int) -> int:
            right = bisect_left(ends, ideal)
            return min(ends[max(0, right - 1) : right + 1], key=lambda row: abs(row - ideal), default=end)

        return parts_between(start, end, map(near, even_cuts(start, end, parts)))

    def read(
        self, file: InputFile, start: int, end: int | None, keep: pa.Array | None = None, bad: OnBadRow = None
    ) -> Iterator[pa.RecordBatch]:
        """The rows [start, end), one group in memory at a time, in batches of bounded size; `end` None: all."""
        # `keep` says by number whether a row exists, as those after its end do; None: all do. Not together with `bad`.
        with file.unchanged():
            if file.size:
                yield from self._rows(file, start, end, keep, bad)

    def _converted(
        self, file: InputFile, piece: pa.RecordBatch, constants: Mapping[str, str | None], first: int, bad: OnBadRow
    ) -> Iterator[pa.RecordBatch]:
        """Rows in the declared types, without those that do not fit; `first` is the number of the first one."""

        def refuse(row: BadRow) -> None:
            raise file.refusal(
                f"row {row.position['row']} does not fit the declared columns: {row.reason}",
                "correct the file or the schema, and start again with the option changed_files=accept if the file was "
                "changed; or load with on_bad_row=quarantine",
            )

        def collect(row: int, one: pa.RecordBatch, problem: Exception) -> None:
            (bad or refuse)(BadRow({"file": file.name, "row": first + row}, str(problem), self._shown(one)))

        try:
            good = iter([self._convert(piece, constants)])
        except pa.ArrowInvalid:
            if self._grown:  # rows may have been left out, so that their numbers are not known
                raise
            self._convert(piece.slice(0, 0), constants)  # what is wrong with all rows is no matter of one
            good = sift(piece, lambda rows: self._convert(rows, constants), pa.ArrowInvalid, collect)
        yield from good

    def _convert(self, rows: pa.RecordBatch, constants: Mapping[str, str | None]) -> pa.RecordBatch:
        return conform(rows, self._wanted, constants)

    def _shown(self, row: pa.RecordBatch) -> str:
        return text_of(row)

    def _check(self, file: InputFile, footer: Footer) -> None:
        if footer is EMPTY or self._grown:
            return
        if self._checked is None or not footer.schema.equals(self._checked):
            refuse_misfit(file, misfit(footer.schema, self._wanted, file.constants))
            if not file.constants:
                self._checked = footer.schema


def refuse_misfit(file: InputFile, problem: str | None) -> None:
    """Refuse a file whose columns do not fit the declared ones."""
    if problem is not None:
        raise file.refusal(problem, DECLARE_OTHERS)


def less(limit: Limit, step: Advance) -> Limit:
    """What is left of a limit; a step with an unknown number of rows uses all of it."""
    return Limit(
        None if limit.rows is None else max(0, limit.rows - (limit.rows if step.rows is None else step.rows)),
        None if limit.bytes is None else max(0, limit.bytes - (step.bytes or 0)),
    )


def no_columns(rows: int) -> pa.RecordBatch:
    """Rows without columns: of a file whose columns are not wanted."""
    return pa.RecordBatch.from_struct_array(pa.StructArray.from_buffers(pa.struct([]), rows, [None]))


def even_cuts(start: int, end: int, parts: int) -> list[int]:
    """The positions that cut a range into parts of equal length; none for a single part."""
    return [start + (end - start) * part // parts for part in range(1, parts)]


def parts_between(start: int, end: int, cuts: Iterable[int]) -> list[tuple[int, int]]:
    """The parts of a range; a cut that is outside of it, or not after the one before, is passed over."""
    edges = [start]
    for cut in cuts:
        if edges[-1] < cut < end:
            edges.append(cut)
    return list(pairwise([*edges, end]))
