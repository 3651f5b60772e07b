"""A row that does not parse or fit, and the form in which it is kept. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from spark_ext.masking import mask
from spark_ext.model.offsets import Json

MOST_RAW: Final = 64 * 1024
"""Bytes of a bad row that are kept; the rest is cut off."""

MOST_REASON: Final = 4 * 1024
"""Characters of a reason that are kept."""


@dataclass(frozen=True)
class BadRow:
    """A row that does not parse, or does not fit the declared schema or the target."""

    position: Json
    """Where it is, in the operator's own form, as JSON: a file and a byte, a partition and an offset, a key."""
    reason: str
    """What is wrong with it. Secrets that the process knows are masked in it."""
    raw: str | bytes | None = None
    """The first `MOST_RAW` bytes of the row as it was found; None: it cannot be shown."""


def passed_over(row: BadRow) -> None:
    """Take a bad row and do nothing: while planning, where none is collected."""


COLLECTED: Final = pa.schema(
    [
        pa.field("channel", pa.string()),
        pa.field("position", pa.string()),
        pa.field("reason", pa.string()),
        pa.field("raw", pa.string()),
        pa.field("raw_bytes", pa.binary()),
    ]
)
"""The columns of what a task has collected."""


def table_of(channel: str | None, rows: Iterable[BadRow]) -> pa.Table:
    """Bad rows of a channel as columns; None for those of a sink."""
    given = list(rows)
    raws = [_kept(row.raw) for row in given]
    return pa.table(
        [
            [channel] * len(given),
            [json.dumps(row.position, sort_keys=True) for row in given],
            [mask(row.reason)[:MOST_REASON] for row in given],
            [text for text, _ in raws],
            [content for _, content in raws],
        ],
        schema=COLLECTED,
    )


def _kept(raw: str | bytes | None) -> tuple[str | None, bytes | None]:
    """A row as text, or as bytes if it is none; cut to the limit."""
    if raw is None:
        return None, None
    content = raw.encode("utf-8", "surrogatepass") if isinstance(raw, str) else bytes(raw)
    # The cut may fall into a character of up to four bytes.
    for end in range(min(len(content), MOST_RAW), max(0, min(len(content), MOST_RAW) - 4), -1):
        try:
            return content[:end].decode(), None
        except UnicodeDecodeError:
            if len(content) <= MOST_RAW:
                break
    return ("", None) if not content else (None, content[:MOST_RAW])
