"""Options of `files_2pc`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from spark_ext.options import Bytes, Names
from spark_ext.sinks.contract import SinkOptions


class FilesSinkOptions(SinkOptions):
    """Options of `files_2pc`."""

    path: str = Field(min_length=1)
    """The folder: a path that the driver and the executors share, or a URI of an object store. Created if it does not
    exist."""

    format: Literal["parquet", "csv", "json"] = "parquet"
    """File format."""

    compression: Literal["snappy", "zstd", "gzip", "none"] | None = None
    """Compression codec; CSV and JSON support `gzip` and `none`. Default: snappy for Parquet, none otherwise."""

    partition_by: Names = ()
    """Partition columns, comma-separated: their values are in the names of folders. Fixed by the first epoch."""

    header: bool = False
    """Whether each CSV file begins with the column names."""

    sep: str = Field(default=",", min_length=1, max_length=1)
    """CSV: separator of values."""

    publish: bool | None = None
    """Whether committed files are linked into the folder itself, for readers that do not know the log. Default: yes; in
    an object store, which has no links, no."""

    target_file_size: Bytes = Field(default=256 * 1024**2, gt=0)
    """Size at which a file is closed and a new one is started, bytes."""

    row_group_rows: int = Field(default=1_000_000, gt=0)
    """Maximum number of rows that a task buffers before it writes them; a row group in Parquet."""

    row_group_size: Bytes = Field(default=128 * 1024**2, gt=0)
    """Maximum memory that a task buffers before it writes, bytes."""

    @model_validator(mode="after")
    def _together(self) -> FilesSinkOptions:
        if self.format != "parquet" and self.compression not in (None, "gzip", "none"):
            raise ValueError(f"compression '{self.compression}' is for parquet; {self.format} supports gzip and none")
        if self.format != "csv" and (self.header or self.sep != ","):
            raise ValueError("header and sep require format=csv")
        if self.sep in '"\\\r\n':
            raise ValueError(f"sep cannot be {self.sep!r}, which has a meaning of its own in CSV")
        return self
