"""Spark's own write-ahead log of a query, read as files: the facts on which the lifecycle is based.

A checkpoint directory holds `metadata` (the query's id), `offsets/N` (written before epoch N runs; see `parse_offsets`)
and `commits/N` (written after its sink has committed it), about 100 of each.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from spark_ext.errors import StateError
from spark_ext.model.offsets import LoggedOffsets, OffsetKind, SourceOffset, kind_of
from spark_ext.storage import LocalFolder, folder_at


class SparkLog:
    """View of a checkpoint directory; every call reads the files as they are now. Only `replace` and `delete` write."""

    def __init__(self, checkpoint: str) -> None:
        self.checkpoint = checkpoint
        self._folder = folder_at(checkpoint)

    def exists(self) -> bool:
        """Whether a query was ever started on this directory."""
        return self.read("metadata") is not None

    def query_id(self) -> str | None:
        """Spark's id of the query, generated when the directory was created; None: never started."""
        text = self.read("metadata")
        return str(self.parsed("metadata", text)["id"]) if text else None

    def newest_offsets(self) -> int | None:
        """The newest epoch that was planned."""
        return max(self.numbers("offsets"), default=None)

    def newest_commit(self) -> int | None:
        """The newest epoch that was committed."""
        return max(self.numbers("commits"), default=None)

    def commits(self) -> list[int]:
        """The committed epochs that Spark still has, ascending."""
        return sorted(self.numbers("commits"))

    def is_committed(self, epoch: int) -> bool:
        """Whether `commits/<epoch>` exists: a single lookup, no listing."""
        return self.has(f"commits/{epoch}")

    def commit(self, epoch: int) -> dict[str, Any] | None:
        """What `commits/<epoch>` says, such as `stateUniqueIds`; None if it does not exist."""
        text = self.read(f"commits/{epoch}")
        # Its first line is the version of the format; what is known of it is the same in all of them.
        return None if text is None else self.parsed(f"commits/{epoch}", text.partition("\n")[2] or "{}")

    def committed_at(self, epoch: int) -> float | None:
        """When `commits/<epoch>` was written, seconds since 1970; None if it does not exist."""
        return self._folder.modified(f"commits/{epoch}")

    def offsets(self, epoch: int) -> LoggedOffsets | None:
        """`offsets/<epoch>`; None if it does not exist (not planned yet, or already removed by Spark)."""
        text = self.read(f"offsets/{epoch}")
        return None if text is None else parse_offsets(epoch, text)

    def has(self, name: str) -> bool:
        """Whether a file of the directory exists; `name` is relative to it."""
        return self._folder.has(name)

    def names(self, folder: str) -> list[str]:
        """The names in a folder, in no order; none if the folder does not exist."""
        return self._folder.names(folder)

    def numbers(self, folder: str) -> list[int]:
        """Those names in a folder that are numbers."""
        return [int(name) for name in self.names(folder) if name.isdigit()]

    def read(self, name: str) -> str | None:
        """The text of a file of the directory; None if it does not exist."""
        content = self.read_bytes(name)
        return None if content is None else content.decode()

    def read_bytes(self, name: str) -> bytes | None:
        """The content of a file of the directory; None if it does not exist."""
        return self._folder.find(name)

    def parsed(self, name: str, text: str | None = None) -> dict[str, Any]:
        """The object of a JSON file of the directory, or in text that was read from it; empty if it does not exist."""
        text = self.read(name) if text is None else text
        try:
            return dict(json.loads("{}" if text is None else text))
        except (ValueError, TypeError):
            raise StateError(
                f"the file {name} is empty or torn, as a power failure or a full disk may leave it",
                operator=f"checkpoint {self.checkpoint}",
                kept="the file and all output are unchanged; nothing was started",
                do="restore the checkpoint directory from a backup, as a whole; or restore the job from a savepoint or "
                "a retained checkpoint",
            ) from None

    def delete(self, name: str) -> None:
        """Remove a file of the directory that is not Spark's; a missing one is ignored."""
        self._folder.delete(name)

    def replace(self, name: str, text: str) -> None:
        """Put a new file in the place of one of the directory, for a copy on which no query runs.

        The old file keeps its content under its other names. Hadoop's checksum of it is removed.
        """
        folder, _, base = name.rpartition("/")
        if isinstance(self._folder, LocalFolder):
            self._folder.delete(f"{folder}/.{base}.crc")
        self._folder.write(name, text)


def parse_offsets(epoch: int, text: str) -> LoggedOffsets | None:
    """Parse the text of `offsets/N`; None while Spark is still writing it.

    Version 1 of the log has one line per source, in plan order. Version 2, which the setting
    `spark.sql.streaming.offsetLog.formatVersion` selects, has lines `id:offset`: the id is the source's position, or
    its name where source evolution is on.
    """
    lines = text.splitlines()
    if len(lines) < 2 or not lines[0].startswith("v"):
        return None
    try:
        metadata = json.loads(lines[1])
    except ValueError:
        return None
    if lines[0] not in ("v1", "v2"):
        raise StateError(
            f"Spark's offset log has version {lines[0][:20]}; versions v1 and v2 are known",
            operator=f"epoch {epoch}",
            kept="the checkpoint is unchanged",
            do="use the Spark version for which this release of spark-ext was made, and its own log format",
        )
    offsets = lines[2:]
    if lines[0] == "v2":
        named = [line.partition(":")[::2] for line in offsets]
        # Spark writes them in the order of a hash map.
        offsets = [offset for _, offset in sorted(named, key=lambda pair: (len(pair[0]), pair[0]))]
    return LoggedOffsets(epoch, metadata, tuple(None if line == "-" else _parsed(line) for line in offsets))


def with_offsets(text: str, offsets: Mapping[str, SourceOffset]) -> str:
    """The text of `offsets/N` with other offsets for some sources, by uid."""
    lines = text.splitlines()
    for number, line in enumerate(lines[2:], 2):
        name, colon, offset = line.partition(":") if lines[0] == "v2" else ("", "", line)
        raw = _parsed(offset)
        if kind_of(raw) is OffsetKind.CHANNELS and raw["uid"] in offsets:
            changed = json.dumps(offsets[raw["uid"]].to_json(), separators=(",", ":"))
            lines[number] = f"{name}{colon}{changed}"
    return "\n".join(lines)


def with_watermark(text: str, watermark: int) -> str:
    """The text of `offsets/N` for an epoch that reads nothing more, under another watermark, ms."""
    version, metadata, offsets = text.split("\n", 2)
    changed = json.dumps({**json.loads(metadata), "batchWatermarkMs": watermark}, separators=(",", ":"))
    return f"{version}\n{changed}\n{offsets}"


def _parsed(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return line
