"""What one `offsets/N` of Spark's write-ahead log holds. Pure: whoever reads the file makes one."""

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
    """One parsed offset per source, in plan order; None where a source had none yet."""
