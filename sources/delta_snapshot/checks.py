"""What a start refuses of a table: other files than those that were begun, and columns that were declared wrongly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql.types import StructType

from spark_ext.datafiles.input_file import KEPT
from spark_ext.datafiles.uri import shown
from spark_ext.errors import NEW_QUERY, DataError, refused
from spark_ext.schemas.arrow import arrow_type
from spark_ext.schemas.columns import fits
from spark_ext.sources.contract import Channel
from spark_ext.sources.delta_snapshot.channels import path_in


def check_begun(
    begun: Mapping[str, Mapping[str, Any] | None], version: int, channels: Sequence[Channel], path: str, who: str
) -> None:
    """Refuse another table under the same path: its version has other files than those that were read.

    Args:
        begun: the data of the channels that were begun, by their ids; None: it has finished.
    """
    held = {channel.id: channel.data for channel in channels}
    for name, data in begun.items():
        if name not in held or (data is not None and data["size"] != held[name]["size"]):
            raise DataError(
                f"version {version} of '{shown(path)}' is not the one that this source has begun: it does not have the "
                f"file '{path_in(name)}'; the table was replaced by another one",
                operator=who,
                kept=KEPT,
                do=f"restore the table, or read the table that is there now {NEW_QUERY}",
            )


def check_declared(declared: StructType | None, held: StructType, who: str) -> None:
    """Refuse a declared schema that does not match the table.

    Args:
        declared: by the user; None: nothing was declared.
    """
    for field in declared or ():
        there = held[field.name] if field.name in held.names else None
        if there is None or not fits(arrow_type(there.dataType), arrow_type(field.dataType)):
            found = f"has the type {there.dataType.simpleString()}" if there is not None else "is not in the table"
            raise refused(
                f"column '{field.name}' is declared as {field.dataType.simpleString()}, but {found}",
                who,
                f"remove .schema(...), or declare columns of the table: {held.simpleString()}",
            )
