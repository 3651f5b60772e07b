"""`files`: Parquet, ORC, Avro, CSV and JSON files; a file, or a folder's files in order, is a channel.

    spark.readStream.format("files").option("uid", "flights").option("path", "data/flights").load()

Bounded by default: it ends when all files that existed at the start of a run have been read. With `watch` new files
become new channels as they appear. A file that has been read is never opened again, not even in a later run.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.types import StructField, StructType

from spark_ext.bad_rows.row import BAD_FILE, MOST_REASON
from spark_ext.clients.library import load
from spark_ext.datafiles.input_file import COMPRESSED, KEPT, InputFile, resolve
from spark_ext.datafiles.listing import Listing
from spark_ext.datafiles.local_tree import Entry
from spark_ext.datafiles.uri import shown
from spark_ext.errors import ConfigurationError, DataError, refused
from spark_ext.masking import mask
from spark_ext.model.offsets import Json, Position
from spark_ext.schemas.arrow import arrow_schema
from spark_ext.schemas.columns import constant, folder_values, spark_schema
from spark_ext.sources.contract import Advance, BadRow, Channel, ChannelSource, Limit
from spark_ext.sources.files import metadata
from spark_ext.sources.files.inferred import SAMPLED_FILES, FrozenSchema, lacking, merged
from spark_ext.sources.files.lines import LinesFormat, NewColumns
from spark_ext.sources.files.options import BINARY, BY_ROW, FORMATS, FilesOptions
from spark_ext.sources.files.parquet import ParquetFormat
from spark_ext.sources.files.row_groups import RowGroupsFormat, less
from spark_ext.sources.files.text import CsvFormat, JsonFormat
from spark_ext.sources.positions import no_position, number_in

if TYPE_CHECKING:
    from spark_ext.sources.files.avro import AvroFormat


# Between the name of a bad file and what it was like, in the id of its channel: no name of a file has two slashes.


class Files(ChannelSource):
    """Files as channels.

    Positions: a row number (Parquet, ORC) or the byte at which a block (Avro) or a line (CSV, JSON) begins; with
    `group=directory` the file's number and the position in it. A channel's data are the size and modification time of
    its files when they were discovered; a file that has changed since is refused (`changed_files`).
    """

    names_changes = True
    channels_name = "files"
    options_type = FilesOptions
    options: FilesOptions

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        self._past: set[str] = set()
        self._good: set[str] = set()  # files that were inspected, and can be read
        self._kept: FrozenSchema | None = None  # what was frozen when Spark asked for columns
        self._formats: dict[str, RowGroupsFormat | AvroFormat | LinesFormat] = {}
        # Resolved in the user's process: an executor may have another working directory.
        self._place = resolve(self.options.path, self._operator)

    @classmethod
    def name(cls) -> str:
        """`files`."""
        return "files"

    @property
    def _operator(self) -> str:
        return f"source '{self.options.uid}'"

    @cached_property
    def _listing(self) -> Listing:
        options = self.options
        return Listing(*self._place, self._operator, options.recursive, options.pattern, options.order)

    def _with_rows(self) -> list[Entry]:
        """The files that are not empty."""
        entries = [entry for entry in self._listing.entries() if entry.size]
        if not entries:
            raise self._refusal(
                f"'{shown(self.options.path)}' contains no file to take the schema from",
                "declare the columns with .schema(...), or correct the option 'path'",
            )
        return entries

    def schema(self) -> StructType:
        """The schema of the first file, with the keys of `key=value` folders as strings; not of CSV and JSON."""
        if self.options.schema_location is not None:
            return self._with_metadata(self._frozen(self.options.schema_location).columns, by_row=False)
        first = self._with_rows()[0]
        file = self._file(first.name, first.size, first.modified)
        if self._format_name(first.name) in ("csv", "json"):
            raise self._refusal(
                f"file '{first.name}' does not contain the types of its columns",
                "declare the columns with .schema(...), or set infer=true and schema_location",
            )
        try:
            found = spark_schema(self._columns_of(file))
        except TypeError as problem:
            raise self._refusal(
                f"file '{first.name}': {problem}", "declare the columns to read with .schema(...)"
            ) from None
        for key in folder_values(first.name):
            if key not in found.names:
                found = found.add(key, "string")
        return self._with_metadata(found, by_row=self._format_name(first.name) in BY_ROW)

    def _with_metadata(self, found: StructType, *, by_row: bool) -> StructType:
        if not self.options.metadata:
            return found
        if metadata.NAME in found.names:
            raise self._refusal(
                f"the files have a column '{metadata.NAME}' of their own",
                "set metadata=false, or declare the columns with .schema(...)",
            )
        return StructType([*found, StructField(metadata.NAME, metadata.spark_type(by_row=by_row))])

    def _frozen(self, location: str) -> FrozenSchema:
        """The columns that are kept, those of the first files; with those of later files if they are wanted."""
        found = FrozenSchema.find(location, self._operator)
        if found is None:
            found = self._inferred(location).freeze(location, self._operator)
            self._tell(f"inferred {found.ddl}; kept in {shown(location)}")
        place = self.options.identity()["path"]
        if found.place != place:
            raise self._refusal(
                f"'{location}' has the columns of '{found.place}', and this source reads '{place}'",
                "give each source a schema_location of its own, or correct the entry 'path' of that file",
            )
        self._kept = self._grown(found, location) if self.options.schema_evolution == "add_columns" else found
        return self._kept

    def _tell(self, what: str) -> None:
        print(f"{self._operator}: {what}", file=sys.stderr, flush=True)

    def _inferred(self, location: str) -> FrozenSchema:
        if location.startswith(f"{self._listing.root.rstrip('/')}/"):
            raise self._refusal(
                f"the option 'schema_location' is '{location}', in the folder that is read", "choose another folder"
            )
        samples, csv = [], True
        for entry in self._with_rows()[:SAMPLED_FILES]:
            kind = self._format_name(entry.name)
            self._refuse_options(entry.name, kind)
            if kind in BINARY or (kind == "csv" and not self.options.header):
                raise self._refusal(
                    f"infer=true is for CSV files with a header and for JSON files, and not for '{entry.name}'",
                    "set the option 'header' if it has one, or declare the columns with .schema(...)",
                )
            csv &= kind == "csv"
            try:
                samples.append((entry.name, self._sample(entry, StructType())))
            except DataError:
                if self.options.on_bad_file == "fail":
                    raise
        whole = merged(samples, self._operator, as_text=csv)
        if not whole.fields:
            raise self._refusal("the first files have no columns", "declare the columns with .schema(...)")
        return FrozenSchema(self.options.identity()["path"], whole, lacking(samples) if csv else {})

    def _sample(self, entry: Entry, known: StructType) -> pa.Schema:
        """The columns of a file that are not known, with the keys of its folders at the end."""
        file, kind = self._file(entry.name, entry.size, entry.modified), self._format_name(entry.name)
        made = (CsvFormat if kind == "csv" else JsonFormat)(arrow_schema(known), self.options, known.names)
        folders = folder_values(entry.name)
        found = [one for one in made.infer(file) if one.name not in folders]
        found += [pa.field(key, pa.string()) for key in folders]
        return pa.schema([one for one in found if one.name not in known.names])

    def _grown(self, kept: FrozenSchema, location: str) -> FrozenSchema:
        """With the columns of files that are newer than those of the former load."""
        since = kept.seen or 0
        entries = [one for one in self._listing.entries() if one.size and (one.modified >= since or not one.modified)]
        samples = []
        for entry in entries:
            with suppress(DataError):  # reading says what is wrong with it
                samples.append((entry.name, self._sample(entry, kept.columns)))
        csv = all(self._format_name(entry.name) == "csv" for entry in entries)
        new = merged(samples, self._operator, as_text=csv, beside=kept.columns.names)
        first = {one.name: next(name for name, sample in samples if one.name in sample.names) for one in new}
        seen = min(time.time_ns(), max((one.modified for one in entries), default=since))
        found = FrozenSchema(kept.place, StructType([*kept.columns, *new]), {**kept.optional, **first}, seen)
        if found != kept:
            found.freeze(location, self._operator, instead=True)
        for name, file in first.items():
            kind = new[name].dataType.simpleString()
            self._tell(f"added `{name}` {kind}, as file '{file}' has it; kept in {shown(location)}")
        return found

    def _columns_of(self, file: InputFile) -> pa.Schema:
        kind = self._format_name(file.name)
        if kind == "avro":
            from spark_ext.sources.files.avro import schema_of

            load("fastavro", "avro", self._operator)
            return schema_of(file)
        if kind == "orc":
            from spark_ext.sources.files.orc import read_footer

            return read_footer(file).schema
        return ParquetFormat.read_footer(file).schema

    def _refusal(self, what: str, do: str) -> ConfigurationError:
        return refused(what, self._operator, do)

    @property
    def _rows_schema(self) -> StructType:
        return self.declared if self.declared is not None else self.schema()

    @property
    def bounded(self) -> bool:
        """True unless it watches for new files."""
        return not self.options.watch

    @property
    def channels_end(self) -> bool:
        """True: each file has an end."""
        return True

    def resume(self, known: Sequence[Channel], finished: frozenset[str]) -> None:
        """Remember the files that need not be read again; refuse columns that are no longer those that are kept."""
        if self.options.schema_location is not None:
            self._check_frozen(self.options.schema_location)
        self._past.update(finished, (channel.id for channel in known))

    def _check_frozen(self, location: str) -> None:
        found = FrozenSchema.find(location, self._operator)
        if found is None:
            raise self._refusal(
                f"the inferred columns are no longer kept: '{location}' is gone",
                "restore that file; without it load() infers the columns again, and may find others",
            )
        kept, given = self._with_metadata(found.columns, by_row=False), self._rows_schema
        if kept.simpleString() != given.simpleString():
            raise self._refusal(
                f"the columns are {given.simpleString()}, and '{location}' has {kept.simpleString()}",
                "remove .schema(...) or infer=true; if the file was edited, load the source again",
            )

    def open(self) -> None:
        """Refuse a path that does not exist, before the query starts."""
        self._listing.check()
        if self.options.format == "avro":
            load("fastavro", "avro", self._operator)

    def discover(self) -> Iterable[Channel]:
        """One listing; no file is opened."""
        entries = self._listing.entries()
        if self.options.watch and self.options.min_age:
            newest = time.time_ns() - self.options.min_age * 1_000_000
            entries = [entry for entry in entries if entry.modified <= newest]
        if self.options.group == "directory":
            self.channels_name = "folders"
            return self._groups(entries)
        self._expect(entries)
        if self.options.on_bad_file == "quarantine":
            return self._all_inspected(entries)
        return [_channel(entry) for entry in entries]

    def _all_inspected(self, entries: Sequence[Entry]) -> Iterator[Channel]:
        yield from map(self._inspected, entries)
        self._expect(entries)

    def _inspected(self, entry: Entry) -> Channel:
        """A file's channel; of a bad one it has a name of its own, which is another one when the file has changed."""
        # Decided here and kept in the offset: a replay leaves the same files out, whatever they are by then.
        bad = f"{entry.name}{BAD_FILE}{entry.size}-{entry.modified}"
        if bad in self._past:
            return Channel(bad)  # as it was
        if entry.name not in self._past and entry.name not in self._good:
            reason = self._fault(entry)
            if reason is not None:
                return Channel(bad, 0, [entry.size, entry.modified, reason])
            self._good.add(entry.name)
        return _channel(entry)

    def _fault(self, entry: Entry) -> str | None:
        """Why a file cannot be read as a whole, by what is known without its rows; None: it can."""
        file = self._file(entry.name, entry.size, entry.modified)
        if not file.size:
            return None
        try:
            self._format(entry.name).inspect(file)
            for name, text in file.constants.items():
                with file.faults():
                    constant(text, self._wanted.field(name).type, 0)
        except DataError as problem:
            if isinstance(problem, NewColumns) and self.options.schema_evolution == "add_columns":
                raise  # it is read with them, later
            file.verify()  # one that is being written is not bad
            return mask(problem.what)[:MOST_REASON]
        return None

    def _expect(self, entries: Sequence[Entry]) -> None:
        """Announce the files whose footers planning will need."""
        if self.options.changed_files != "refuse":
            return
        left = [entry for entry in entries if entry.name not in self._past and entry.size]
        for kind in {self._format_name(entry.name) for entry in left} & {"parquet", "orc"}:
            made = self._of_kind(kind)
            assert isinstance(made, RowGroupsFormat)
            made.footers.announce(
                self._file(entry.name, entry.size, entry.modified)
                for entry in left
                if self._format_name(entry.name) == kind
            )

    @staticmethod
    def _groups(entries: Iterable[Entry]) -> list[Channel]:
        folders: dict[str, list[list[Any]]] = {}
        for entry in entries:
            last = entry.name.rpartition("/")[2]
            folders.setdefault(entry.folder, []).append([last, entry.size, entry.modified])
        return [Channel(folder, [0, 0], files) for folder, files in folders.items()]

    def advance(self, channel: Channel, start: Position, limit: Limit) -> Advance:
        """Advance by the file's footer or its lines; see the formats."""
        if self.options.group == "directory":
            step = self._advance_group(channel, start, limit)
        elif BAD_FILE in channel.id:
            step = Advance(1, True, rows=0, bytes=0)
        else:
            step = self._advance_file(self._file(channel.id, *channel.data), start, limit)
        if step.finished:
            self._past.add(channel.id)
        return step

    def _advance_file(self, file: InputFile, start: int, limit: Limit) -> Advance:
        if not file.size or (start >= file.size and not self._format(file.name).by_row):
            # A file that was empty when it was discovered may have been filled since.
            file.verify()
            return Advance(start, True, rows=0, bytes=0)
        return self._format(file.name).advance(file, start, limit)

    def _advance_group(self, channel: Channel, start: list[int], limit: Limit) -> Advance:
        index, at = start
        rows: int | None = 0
        size, whole = 0, False
        files = list(self._group_files(channel))
        while index < len(files):
            step = self._advance_file(files[index], at, limit)
            rows = None if rows is None or step.rows is None else rows + step.rows
            size += step.bytes or 0
            whole |= step.whole
            index, at = (index + 1, 0) if step.finished else (index, step.end)
            limit = less(limit, step)
            if not step.finished or 0 in (limit.rows, limit.bytes):
                break
        return Advance([index, at], index == len(files), rows=rows, bytes=size, whole=whole)

    def split(
        self, channel: Channel, start: Position, end: Position, parts: int
    ) -> Sequence[tuple[Position, Position]]:
        """Split a file at row groups or lines; a group is never split, to keep its order."""
        if not self.options.split or self.options.group == "directory" or start == end or BAD_FILE in channel.id:
            return [(start, end)]
        file = self._file(channel.id, *channel.data)
        return self._format(file.name).split(file, start, end, parts)

    def seek(self, channel: Channel, at: Position, position: Json) -> Position:
        """A row number, or the byte at which a block or line begins; with `group=directory` behind a file's number."""
        if self.options.group == "file":
            file = self._file(channel.id, *channel.data)
            return self._format(file.name).seek(file, position)
        files = list(self._group_files(channel))
        who = f"{self._operator}, channel '{channel.id}'"
        if not isinstance(position, list) or len(position) != 2:
            raise no_position(position, "a list of a file's number, from 0, and the position in that file", who)
        index = number_in(position[0], 0, len(files), "first the number of a file", who)
        if index == len(files):
            return [index, number_in(position[1], 0, 0, "behind the last file the position", who)]
        return [index, self._format(files[index].name).seek(files[index], position[1])]

    @property
    def knows_when_written(self) -> bool:
        """True: a file was written when it was last modified."""
        return True

    def written_before(self, channel: Channel, position: Position, at: float) -> bool:
        """By the modification time that the file had when it was discovered."""
        if self.options.group == "file":
            return bool(channel.data[1] / 1e9 < at)
        files = channel.data[position[0] :]
        return not files or bool(files[0][2] / 1e9 < at)

    def read(self, channel: Channel, start: Position, end: Position) -> Iterator[pa.RecordBatch]:
        """The rows of a range; of a bad file none."""
        if BAD_FILE in channel.id:
            self._put_aside(channel)
            return
        if self.options.group == "file":
            file = self._file(channel.id, *channel.data)
            yield from self._rows(file, start, end)
            return
        (first, begin), (last, stop) = start, end
        for index, file in enumerate(self._group_files(channel)):
            if first <= index <= last and not (index == last and stop == 0):
                yield from self._rows(file, begin if index == first else 0, stop if index == last else None)

    def _put_aside(self, channel: Channel) -> None:
        name, reason = channel.id.partition(BAD_FILE)[0], channel.data[2]
        error = DataError(
            f"{reason}; it was put aside when this epoch was planned",
            operator=f"{self._operator}, file '{name}'",
            kept=KEPT,
            do="start again with on_bad_row=quarantine: the file is tried again when it has changed",
        )
        self.bad_row(BadRow({"file": name}, reason), error)

    def _rows(self, file: InputFile, start: int, end: int | None) -> Iterator[pa.RecordBatch]:
        bad = self.bad_row if self.collects_bad_rows else None
        made = self._format(file.name)
        if not self.options.metadata:
            return made.read(file, start, end, bad=bad)
        declared = arrow_schema(self._rows_schema)
        return metadata.with_metadata(
            lambda collect: made.read(file, start, end, bad=collect), declared, file, self.options.path, start, bad
        )

    def _group_files(self, channel: Channel) -> Iterator[InputFile]:
        folder = "" if channel.id == "." else channel.id + "/"
        for last, size, modified in channel.data:
            yield self._file(folder + last, size, modified)

    def _file(self, name: str, size: int, modified: int) -> InputFile:
        filesystem, _ = self._place
        path = f"{self._listing.root.rstrip('/')}/{name}"
        folders = folder_values(name) if "=" in name else {}
        names = self.declared.names if self.declared is not None else ()
        constants = {key: folders[key] for key in folders if key in names}
        file = InputFile(filesystem, path, name, size, modified or None, self.options.uid, constants)
        return file.as_it_is() if self.options.changed_files == "accept" else file

    @cached_property
    def _wanted(self) -> pa.Schema:
        """The declared columns that are read from files."""
        wanted = arrow_schema(self._rows_schema)
        if not self.options.metadata:
            return wanted
        metadata.check(wanted, self._operator)
        return wanted.remove(wanted.get_field_index(metadata.NAME))

    @property
    def _wants_row_index(self) -> bool:
        declared = self.declared
        kind = declared[metadata.NAME].dataType if declared is not None and metadata.NAME in declared.names else None
        return metadata.ROW_INDEX in getattr(kind, "names", ())

    def _format(self, name: str) -> RowGroupsFormat | AvroFormat | LinesFormat:
        kind = self._format_name(name)
        self._refuse_options(name, kind)
        return self._of_kind(kind)

    def _of_kind(self, kind: str) -> RowGroupsFormat | AvroFormat | LinesFormat:
        if kind not in self._formats:
            self._formats[kind] = self._made(kind)
        return self._formats[kind]

    def _made(self, kind: str) -> RowGroupsFormat | AvroFormat | LinesFormat:
        if kind == "parquet":
            return ParquetFormat(self._wanted)
        if kind == "orc":
            from spark_ext.sources.files.orc import OrcFormat

            return OrcFormat(self._wanted)
        if kind == "avro":
            from spark_ext.sources.files.avro import AvroFormat

            return AvroFormat(self._wanted, self._operator)
        if kind == "csv":
            self._check_renames()
        return (CsvFormat if kind == "csv" else JsonFormat)(self._wanted, self.options, self._optional)

    @property
    def _optional(self) -> Collection[str]:
        if self._kept is None and self.options.schema_location is not None:
            self._kept = FrozenSchema.find(self.options.schema_location, self._operator)
        return () if self._kept is None else self._kept.optional

    def _check_renames(self) -> None:
        declared = self._wanted.names
        for theirs, ours in self.options.columns.items():
            if ours not in declared:
                raise self._refusal(
                    f"the option 'columns' renames '{theirs}' to '{ours}', which is no declared column; declared are: "
                    f"{', '.join(declared)}",
                    "correct the option, or declare the column with .schema(...)",
                )

    def _refuse_options(self, name: str, kind: str) -> None:
        """Refuse options that this format does not have, where it is known by the file alone."""
        if kind in BINARY and self.options.encoding != "utf-8":
            raise self._refusal(
                f"the option 'encoding' is for text, and file '{name}' is {kind}",
                "remove the option, or select the text files with the option 'pattern'",
            )
        for option in ("skip_rows", "columns"):
            if kind != "csv" and getattr(self.options, option):
                raise self._refusal(
                    f"the option '{option}' is for CSV, and file '{name}' is {kind}",
                    "remove the option, or select the CSV files with the option 'pattern'",
                )
        if self.options.metadata and kind not in BY_ROW and self._wants_row_index:
            raise self._refusal(
                f"the rows of {kind} files have no numbers, for the field '{metadata.ROW_INDEX}' of the column "
                f"'{metadata.NAME}' (file '{name}')",
                "declare the column without this field",
            )

    def _format_name(self, name: str) -> str:
        if self.options.format is not None:
            return self.options.format
        endings = [end.lower() for end in PurePosixPath(name).suffixes]
        if endings and endings[-1] in COMPRESSED:
            endings.pop()
        if not endings or endings[-1] not in FORMATS:
            raise self._refusal(
                f"the format of file '{name}' cannot be determined from its name",
                "set the option 'format', or select files by their names with the option 'pattern'",
            )
        return FORMATS[endings[-1]]


def _channel(entry: Entry) -> Channel:
    return Channel(entry.name, 0, [entry.size, entry.modified])
