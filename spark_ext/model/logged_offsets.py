"""The content of one `offsets/N` of Spark's write-ahead log. Pure: the caller reads the file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class LoggedOffsets:
    """The content of one `offsets/N`."""

    epoch: int
    metadata: dict[str, Any]
    """Spark's header: `batchWatermarkMs`, `batchTimestampMs` (ms, UTC) and `conf`."""
    sources: tuple[Any, ...]
    """One parsed offset per source, in plan order; None for a source that had none yet."""
