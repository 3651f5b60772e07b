"""The options of `files`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from spark_ext.options import Milliseconds, new_names
from spark_ext.schemas.strptime import refused_directive
from spark_ext.sources.contract import SourceOptions
from spark_ext.sources.files.encodings import Encoding
from spark_ext.sources.files.inferred import FrozenSchema
from spark_ext.sources.spark_names import FILES
from spark_ext.storage import Location

FORMATS = {
    ".parquet": "parquet",
    ".orc": "orc",
    ".avro": "avro",
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
}
"""Formats by the suffix of the file name, for the default of the option `format`."""


BINARY = frozenset({"parquet", "orc", "avro"})
"""Formats that are no text."""

BY_ROW = frozenset({"parquet", "orc"})
"""Formats whose positions are row numbers."""


_NEW_NAMES = BeforeValidator(new_names("Order ID=order_id", signs=True))
_BOOLEANS = {**dict.fromkeys(("true", "1", "yes", "on"), True), **dict.fromkeys(("false", "0", "no", "off"), False)}


class FilesOptions(SourceOptions):
    """Options of `files`."""

    foreign_names: ClassVar[Mapping[str, str]] = FILES
    identity_fields: ClassVar[frozenset[str]] = frozenset({"group", "path"})

    path: str
    """A folder, a file or a glob pattern: a local path, or a URI that pyarrow.fs supports."""
    format: Literal["parquet", "orc", "avro", "csv", "json"] | None = None
    """File format; default: by the suffix of each file's name."""
    infer: bool = False
    """CSV with a header, and JSON: whether the columns are inferred from the first files, and kept."""
    schema_location: str | None = None
    """With `infer`: path or URI of the file in which the columns are kept. It is made by the first `load()`, and later
    ones take the columns from it."""
    schema_evolution: Literal["refuse", "ignore", "add_columns"] = "refuse"
    """With `infer`: what is done about columns that are in later files and are not kept. Rows with them are refused,
    read without them, or refused until the next `load()`, which adds the columns."""
    recursive: bool = True
    """Whether to read subfolders."""
    pattern: str | None = None
    """Glob pattern of the names of the files to read, such as `*.csv`."""
    group: Literal["file", "directory"] = "file"
    """What a channel is: a file, or all files of a folder, read one after the other by `order`."""
    order: Literal["name", "modified"] = "name"
    """The order in which files are started."""
    watch: bool = False
    """Whether to continue with new files as new channels."""
    min_age: Milliseconds = 0
    """With `watch`: how long a file must be unmodified before it is read, ms."""
    split: bool = True
    """Whether several tasks may read one file; its rows are then not in order within an epoch."""
    changed_files: Literal["refuse", "accept"] = "refuse"
    """Whether a file that was changed after its discovery stops the query, or is read as it is now."""
    on_bad_file: Literal["fail", "quarantine"] = "fail"
    """What is done about a file that cannot be read as a whole when it is discovered: the query fails, or the file
    becomes one row of the table of bad rows, and is tried again once it has changed."""
    skip_rows: int = Field(default=0, ge=0)
    """CSV: how many lines at the beginning of each file are no rows, whatever is in them; a header comes after them."""
    header: bool | Literal["normalize"] = False
    """CSV: whether the first line contains the column names; columns are then matched by name, else by position. With
    `normalize` names are compared in lower case, without blanks around them, and with `_` for blanks inside."""
    columns: Annotated[Mapping[str, str], BeforeValidator(new_names("Order ID=order_id", signs=True))] = Field(
        default_factory=dict
    )
    """CSV with a header: which of a file's columns has the values of a declared column of another name, as
    `Order ID=order_id, Total=amount` or as a JSON object."""
    sep: str = Field(default=",", min_length=1, max_length=1)
    """CSV: separator of values."""
    quote: str | None = Field(default='"', max_length=1)
    """CSV: quote character; empty: none."""
    escape: str | None = Field(default=None, max_length=1)
    """CSV: escape character before a quote inside quotes; default: the quote is doubled."""
    null_value: str = ""
    """CSV: text that is read as null, besides an empty value without quotes."""
    multiline: bool = False
    """CSV and JSON: whether values may contain line breaks; a file is then one step, whatever the limits."""
    timestamp_format: str | None = None
    """CSV and JSON: strptime pattern of timestamps; default: ISO 8601. UTC if no zone is given."""
    comment: str | None = Field(default=None, max_length=1)
    """CSV: lines that begin with this character are not rows; default: all lines are rows."""
    encoding: str = "utf-8"
    """CSV and JSON: encoding of the text. Files in UTF-16 and UTF-32 are read in one step, whatever the limits."""
    metadata: bool = False
    """Whether rows have the column `_metadata`: path, name, size and modification time of their file."""

    def identity(self) -> dict[str, str]:
        """What it reads, and as which columns if they are inferred."""
        found = super().identity()
        if self.schema_location is not None:
            frozen = FrozenSchema.find(self.schema_location, f"source '{self.uid}'")
            found |= {"schema": ""} if frozen is None else frozen.identity()
        return found

    @field_validator("sep", mode="before")
    @classmethod
    def _tab(cls, value: object) -> object:
        return "\t" if value == "\\t" else value

    @field_validator("schema_location")
    @classmethod
    def _absolute_location(cls, path: str | None) -> str | None:
        return None if path is None else Location.of(path, {}).uri

    @field_validator("header", mode="plain")
    @classmethod
    def _of_header(cls, value: object) -> bool | Literal["normalize"]:
        text = str(value).strip().lower()
        known: Mapping[str, bool | Literal["normalize"]] = {**_BOOLEANS, "normalize": "normalize"}
        if text not in known:
            raise ValueError("it is true, false or normalize")
        return known[text]

    @field_validator("comment")
    @classmethod
    def _one_byte(cls, value: str | None) -> str | None:
        if value and (not value.isascii() or value in "\r\n"):
            raise ValueError("it has to be a character of ASCII")
        return value or None

    @field_validator("timestamp_format")
    @classmethod
    def _converted(cls, value: str | None) -> str | None:
        if value is not None and (problem := refused_directive(value)) is not None:
            raise ValueError(problem)
        return value

    @field_validator("encoding")
    @classmethod
    def _known(cls, value: str) -> str:
        return Encoding.of(value).name

    @model_validator(mode="after")
    def _together(self) -> FilesOptions:
        if self.format in BINARY and self.encoding != "utf-8":
            raise ValueError(f"encoding is for text: {self.format} files have none")
        if self.infer != (self.schema_location is not None):
            raise ValueError("infer=true and schema_location need each other: what is inferred is kept there")
        if self.schema_evolution != "refuse" and not self.infer:
            raise ValueError("schema_evolution needs infer=true: declared columns stay as they are")
        if self.infer and self.format in BINARY:
            raise ValueError(f"infer is for CSV and JSON: {self.format} files contain their columns")
        if self.columns and not self.header:
            raise ValueError("columns needs header=true or header=normalize: without a header files name no columns")
        for name in ("skip_rows", "header", "columns"):
            if getattr(self, name) and self.format not in (None, "csv"):
                raise ValueError(f"{name} is for CSV: {self.format} files have no header")
        if self.comment is not None:
            if self.format not in (None, "csv"):
                raise ValueError(f"comment is for CSV: {self.format} files have no comments")
            if self.comment in (self.sep, self.quote, self.escape):
                raise ValueError("comment has to be another character than sep, quote and escape")
            if self.multiline:
                raise ValueError("comment and multiline exclude each other: a line of a value may begin like a comment")
        if self.on_bad_file == "quarantine":
            if self.on_bad_row != "quarantine":
                raise ValueError("on_bad_file=quarantine needs on_bad_row=quarantine: both go into one table")
            if self.group == "directory":
                raise ValueError("on_bad_file=quarantine needs group=file: with group=directory a folder is a channel")
        if self.watch and self.group == "directory":
            raise ValueError("watch and group=directory exclude each other: a folder's channel has to end")
        return self
