"""What comes after a version of a Delta table, as one channel: commit after commit, in each the files in order.

A position is `[version, file, row, mark]`: the next row to read is a row of a file of the commit that makes a version;
`mark` is the hash of the last commit that has been read from. So a log that has been replaced is noticed, in the
planner and in a task, even where it has as many versions. Of a table with column mapping it is
`[version, file, row, mark, names]`: what is read up to there has the columns that the table had in the version `names`,
whatever their names stand for by the time a task reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from spark_ext.errors import NEW_QUERY, DataError, refused
from spark_ext.model.offsets import Json
from spark_ext.sources.contract import Advance, Limit
from spark_ext.sources.delta_snapshot.commits import ChangedFile, Commit, appended, changed
from spark_ext.sources.delta_snapshot.log import Follower, Log
from spark_ext.sources.files.parquet import ParquetFormat, read_footer
from spark_ext.sources.files.row_groups import less
from spark_ext.sources.positions import no_position, number_in

if TYPE_CHECKING:
    from spark_ext.datafiles.input_file import InputFile

MOST_AHEAD: Final = 100  # how many commits are read ahead at most, to know how many rows are still to be read


@dataclass(frozen=True)
class LogPosition:
    """A position."""

    version: int  # of the next row, or the next version if `file` and `row` are 0
    file: int = 0
    row: int = 0
    mark: str = ""  # hash of the last commit that has been read from; "": unknown
    names: int | None = None  # version whose column names hold for the rows before it; None: the newest one

    def to_json(self) -> list[Any]:
        """The position."""
        place = [self.version, self.file, self.row, self.mark]
        return place if self.names is None else [*place, self.names]

    @property
    def within(self) -> bool:
        """Whether a part of the version has been read."""
        return (self.file, self.row) != (0, 0)


class ChangedFiles:
    """The rows of commits: of all changes, or only those that were added.

    `format` reads data files by the column names of a version; None: the newest one.
    """

    def __init__(
        self,
        log: Log,
        changes: bool,
        file: Callable[[Commit, ChangedFile], InputFile],
        format: Callable[[int | None], ParquetFormat],
        keep: Callable[[int, InputFile], pa.Array],
    ) -> None:
        self.log, self.file = log, file
        self._changes, self._keep, self._make = changes, keep, format
        self._formats: dict[int | None, ParquetFormat] = {}

    @property
    def format(self) -> ParquetFormat:
        """How data files are planned, whose rows are numbered whatever their columns are called."""
        return self._named(None)

    def _named(self, names: int | None) -> ParquetFormat:
        if names not in self._formats:
            self._formats[names] = self._make(names)
        return self._formats[names]

    def of(self, commit: Commit) -> tuple[ChangedFile, ...]:
        """What is read of a commit."""
        return changed(commit) if self._changes else appended(commit)

    def read(self, start: LogPosition, end: LogPosition) -> Iterator[pa.RecordBatch]:
        """The rows of a range."""
        last = end.version if end.within else end.version - 1
        newest = self.log.commit(last) if last >= start.version else None
        if newest is None or (end.mark and newest.mark != end.mark):
            if last < start.version:
                return
            raise self.log.not_the_commit(last)
        for version in range(start.version, last + 1):
            commit = newest if version == last else self.log.commit(version)
            if commit is None:
                raise self.log.not_the_commit(version)
            if version == start.version and start.within and start.mark and commit.mark != start.mark:
                raise self.log.not_the_commit(version)
            pieces = self.of(commit)
            until = end if version == end.version else LogPosition(version, len(pieces))
            since = start if version == start.version else LogPosition(version)
            for index in range(since.file, min(len(pieces), until.file + 1)):
                low = since.row if index == since.file else 0
                high = until.row if index == until.file else None
                if high is None or low < high:
                    yield from self._rows(commit, pieces[index], low, high, self._named(end.names))

    def _rows(
        self, commit: Commit, piece: ChangedFile, low: int, high: int | None, format: ParquetFormat
    ) -> Iterator[pa.RecordBatch]:
        file = self.file(commit, piece)
        for batch in format.read(file, low, high, self._mask(file, piece)):
            if batch.num_rows:
                yield batch

    def split(self, start: Json, end: Json, parts: int) -> Sequence[tuple[Json, Json]]:
        """Cut a range between versions, and between the files of one."""
        begin, last = LogPosition(*start), LogPosition(*end)
        cuts: list[LogPosition] = []
        for version in range(begin.version, last.version + (1 if last.within else 0)):
            commit = self.log.commit(version)
            if commit is None:
                return [(start, end)]  # whoever reads it says what is wrong
            first = begin.file + 1 if version == begin.version else 1
            upto = last.file + 1 if version == last.version else len(self.of(commit))
            cuts += [LogPosition(version, index, 0, commit.mark, last.names) for index in range(first, upto)]
            cuts.append(LogPosition(version + 1, mark=commit.mark, names=last.names))
        inner = [
            cut.to_json() for cut in cuts if (cut.version, cut.file, cut.row) < (last.version, last.file, last.row)
        ]
        chosen = [inner[len(inner) * part // parts] for part in range(1, parts)] if len(inner) >= parts else inner
        edges = [start, *chosen, end]
        return list(pairwise(edges))

    def _mask(self, file: InputFile, piece: ChangedFile) -> pa.Array | None:
        if piece.alive is None and piece.dead is None:
            return None
        import pyarrow.compute as pc

        rows = read_footer(file).rows
        kept = pa.repeat(True, rows) if piece.alive is None else self._exist(file, piece.alive, rows)
        if piece.dead is not None:
            kept = pc.and_not(kept, self._exist(file, piece.dead, rows))
        return kept

    def _exist(self, file: InputFile, version: int, rows: int) -> pa.Array:
        mask = self._keep(version, file)
        missing = rows - len(mask)
        return pa.concat_arrays([mask, pa.repeat(True, missing)]) if missing > 0 else mask.slice(0, rows)


class Reading:
    """Plans how far the channel is read. In the planner.

    `check` raises if the rows of a commit, or what comes after it, must not be read. `names` gives the version whose
    column names hold for the rows of a version; None: they have always been the same.
    """

    def __init__(
        self,
        pieces: ChangedFiles,
        follower: Follower,
        check: Callable[[Commit], None],
        names: Callable[[int], int | None],
    ) -> None:
        self._pieces, self._follower, self._check, self._names = pieces, follower, check, names

    def advance(self, position: Json, limit: Limit) -> Advance:
        """The end of the next step; the rows before a commit that is refused are read first."""
        self._follower.again()
        at = begin = LogPosition(*position)
        stop = None if limit.upto is None else LogPosition(*limit.upto).version
        rows = size = 0
        while stop is None or at.version < stop:
            commit = self._next(at)
            if commit is None:
                break
            if not at.within:
                try:
                    self._check(commit)
                except Exception:
                    if at == begin:
                        raise
                    break
            at, step = self._through(commit, at, limit)
            rows, size = rows + (step.rows or 0), size + (step.bytes or 0)
            limit = less(limit, step)
            if at.within or 0 in (limit.rows, limit.bytes):
                break
        self._follower.forget(min(begin.version, at.version) - 1)
        return Advance(at.to_json(), rows=rows, bytes=size)

    def _next(self, at: LogPosition) -> Commit | None:
        if not at.within:
            return self._follower.commit(at.version, at.mark)
        commit = self._follower.commit(at.version, "")
        if commit is None or (at.mark and commit.mark != at.mark):
            raise self._pieces.log.not_the_commit(at.version)
        return commit

    def _through(self, commit: Commit, at: LogPosition, limit: Limit) -> tuple[LogPosition, Advance]:
        """As far into a commit as the limit allows; behind it if that is possible."""
        pieces = self._pieces.of(commit)
        index, row = at.file, at.row
        rows = size = 0
        while index < len(pieces) and 0 not in (limit.rows, limit.bytes):
            step = self._pieces.format.advance(self._pieces.file(commit, pieces[index]), row, limit)
            rows, size = rows + (step.rows or 0), size + (step.bytes or 0)
            limit = less(limit, step)
            index, row = (index + 1, 0) if step.finished else (index, step.end)
        whole = index == len(pieces)
        version = commit.version + 1 if whole else commit.version
        end = LogPosition(version, 0 if whole else index, row, commit.mark, self._names(commit.version))
        return end, Advance(None, rows=rows, bytes=size)

    def lag(self, position: Json) -> int | None:
        """Rows of the commits that are there and not read, as the log has them; None: it does not say, or too many."""
        self._follower.again()
        at = LogPosition(*position)
        total = 0
        for _ in range(MOST_AHEAD):
            commit = self._next(at)
            if commit is None:
                return total
            counts = [piece.rows for piece in self._pieces.of(commit)[at.file :]]
            if None in counts:
                return None
            total += sum(count for count in counts if count is not None) - at.row
            at = LogPosition(commit.version + 1, mark=commit.mark)
        return None

    def seek(self, position: Json, newest: int, who: str) -> Json:
        """A version, or a list of a version, the number of one of its files and a row of that."""
        parts = [position, 0, 0] if not isinstance(position, list) else position
        if len(parts) not in (3, 4, 5):
            raise no_position(position, "a version, or a list of a version, the number of a file and a row", who)
        version = number_in(parts[0], 0, newest + 1, "first a version of the table", who)
        log = self._pieces.log
        commit = log.commit(version)
        if commit is None and version <= newest:
            raise refused(
                f"version {version} is no longer in the table's log",
                who,
                f"send the event again with a version from {log.earliest()} on",
                kept="the channel continues where it is",
            )
        pieces = () if commit is None else self._pieces.of(commit)
        index = number_in(parts[1], 0, len(pieces), "as second the number of a file of the version", who)
        if commit is None or index == len(pieces):
            number_in(parts[2], 0, 0, "behind the last file the row", who)
            return LogPosition(version + (index > 0), mark=log.mark(version - (index == 0))).to_json()
        row = self._pieces.format.seek(self._pieces.file(commit, pieces[index]), parts[2])
        within = (index, row) != (0, 0)
        return LogPosition(version, index, row, commit.mark if within else log.mark(version - 1)).to_json()


def unknown_partition(file: InputFile, version: int) -> DataError:
    """The error for a removed file whose partition values the log does not have."""
    return file.refusal(
        f"version {version} removes it, and the table's log does not have its partition values",
        f"read it with a later starting_version {NEW_QUERY}; have such changes made by a writer that records "
        "partition values of removed files, as Spark and delta-rs do",
    )
