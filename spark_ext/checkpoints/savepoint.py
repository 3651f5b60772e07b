"""A savepoint: a folder of its own, from which a job is restored whatever has become of the job since.

manifest.json            what it is, and size and checksum of every file; written last
checkpoint.json          the cut: each query's epoch and offsets, what exchanges hold, where the sinks' targets were
definitions.json         what each query was made of
flags.arrow              the finished flags that belong to the cut
queries/<uid>/           the files of Spark's checkpoint without which the query cannot continue after its epoch
exchanges/<name>/        the rows in flight, and the entries that name them

Nothing outside the folder is needed, except the outputs and the inputs themselves. A retained checkpoint is one too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Final

import pyarrow as pa

from spark_ext.errors import StateError
from spark_ext.ledger.columns import from_arrow, to_arrow
from spark_ext.ledger.schema import FinishedRow
from spark_ext.model.checkpoint_metadata import CheckpointMetadata
from spark_ext.model.definitions import QueryDefinition
from spark_ext.storage import Folder, Location, checksum, child

VERSION: Final = 2  # of the manifest that is written; 2 added the random number of the start that took the savepoint
MANIFEST: Final = "manifest.json"
CHECKPOINT: Final = "checkpoint.json"
DEFINITIONS: Final = "definitions.json"
FLAGS: Final = "flags.arrow"
UNCHANGED: Final = "the savepoint, the job's state and all output are unchanged"


@dataclass(frozen=True)
class About:
    """What a savepoint is."""

    job: str
    job_id: str  # of the job's state: tells two jobs of one name apart
    checkpoint_id: int  # its number in the job
    lineage: int  # the job's newest lineage when it was taken
    incarnation: int
    kind: str  # `savepoint`, or `periodic` for a retained checkpoint
    mode: str  # `aligned` or `unaligned`
    at: str  # when the cut was taken, UTC, ISO 8601
    rows_in_flight: int | None  # rows between its queries; None: unknown
    # Random number of the start that took it: an equal incarnation with another one is that of a copied state. 0: not
    # known, as in version 1.
    start: int = 0

    @property
    def taken_at(self) -> datetime:
        """When the cut was taken, UTC."""
        return datetime.fromisoformat(self.at)


@dataclass(frozen=True)
class Savepoint:
    """A savepoint as it was read."""

    folder: str  # absolute path or URI
    about: About
    metadata: CheckpointMetadata
    definitions: Mapping[str, QueryDefinition]  # by query; of those that had been started
    flags: tuple[FinishedRow, ...]  # channels first, in the order of their finishes
    files: Mapping[str, tuple[int, str]] = field(default_factory=dict)  # size and checksum, by name in the folder

    @property
    def bytes(self) -> int:
        """Size of all its files; those that are hard links take no space of their own."""
        return sum(size for size, _ in self.files.values())

    @property
    def who(self) -> str:
        """The savepoint, for messages."""
        return f"savepoint {self.folder}"

    def below(self, prefix: str) -> tuple[str, ...]:
        """The names of the files in one of its folders, relative to that one."""
        start = prefix.rstrip("/") + "/"
        return tuple(sorted(name.removeprefix(start) for name in self.files if name.startswith(start)))


def retained_folder(state: str) -> str:
    """Where a job has its retained checkpoints, a folder each."""
    return f"{state.rstrip('/')}/checkpoints"


def query_folder(query: str) -> str:
    """Where a savepoint has a query's files."""
    return f"queries/{query}"


def exchange_folder(name: str) -> str:
    """Where a savepoint has what an exchange holds."""
    return f"exchanges/{name}"


def write_flags(folder: str, flags: list[FinishedRow]) -> None:
    """Write the flags."""
    table = to_arrow(FinishedRow, flags)
    with Location.of(folder, {}).folder.open_output(FLAGS) as out, pa.ipc.new_file(out, table.schema) as file:
        file.write_table(table)


def seal(folder: str, about: About, names: list[str]) -> Mapping[str, tuple[int, str]]:
    """Write the manifest, by which a savepoint is complete."""
    files = {name: checksum(child(folder, name)) for name in sorted(names)}
    out = {"version": VERSION, **asdict(about), "files": {name: list(one) for name, one in files.items()}}
    Location.of(folder, {}).folder.write(MANIFEST, json.dumps(out, indent=1))
    return files


def read_savepoint(path: str) -> Savepoint:
    """Read a savepoint, and check all of it: every file is read once."""
    location = Location.of(path, {})
    folder, operator = location.uri, f"savepoint {location.uri}"
    place = location.folder
    raw = _manifest(place, operator)
    files = {name: (int(size), str(crc)) for name, (size, crc) in raw.pop("files").items()}
    for name, expected in files.items():
        _check_file(folder, name, expected, operator)
    try:
        metadata = CheckpointMetadata.from_json(json.loads(_read(place, CHECKPOINT)))
        definitions = {
            query: QueryDefinition.from_json(one) for query, one in json.loads(_read(place, DEFINITIONS)).items()
        }
        with pa.ipc.open_file(pa.BufferReader(_read(place, FLAGS))) as file:
            flags = from_arrow(FinishedRow, file.read_all())
        return Savepoint(folder, About(**raw), metadata, definitions, tuple(flags), files)
    except (TypeError, KeyError, ValueError) as problem:
        raise _damaged(f"its contents cannot be understood: {problem}", operator) from problem


def _found(folder: Folder, name: str) -> bytes | None:
    with suppress(OSError):
        return folder.find(name)
    return None


def _manifest(folder: Folder, operator: str) -> dict[str, Any]:
    text = _found(folder, MANIFEST)
    if text is None:
        found = next(folder.files(), None)
        raise StateError(
            "no savepoint found: the folder is empty or missing"
            if found is None
            else f"the savepoint is not complete: it has no {MANIFEST}, which is written last",
            operator=operator,
            kept=UNCHANGED,
            do="correct the path" if found is None else "use another savepoint; this one was never completed",
        )
    try:
        raw: dict[str, Any] = json.loads(text)
        version = raw.pop("version")
    except (ValueError, AttributeError, KeyError, TypeError):
        raise _damaged(f"{MANIFEST} cannot be understood", operator) from None
    if version not in range(1, VERSION + 1):
        raise StateError(
            f"the savepoint has version {version!r}; this release reads versions 1 to {VERSION}",
            operator=operator,
            kept=UNCHANGED,
            do="use the release of spark-ext that wrote it, or a newer one",
        )
    if not isinstance(raw.get("files"), dict):
        raise _damaged(f"{MANIFEST} names no files", operator)
    return raw


def _check_file(folder: str, name: str, expected: tuple[int, str], operator: str) -> None:
    try:
        found = checksum(child(folder, name))
    except FileNotFoundError:
        raise _damaged(f"the file {name} is missing", operator) from None
    if found != expected:
        raise _damaged(
            f"the file {name} has {found[0]} bytes and the checksum {found[1]}, and was written with {expected[0]} "
            f"bytes and {expected[1]}",
            operator,
        )


def _read(folder: Folder, name: str) -> bytes:
    content = _found(folder, name)
    if content is None:
        raise KeyError(name)
    return content


def _damaged(what: str, operator: str) -> StateError:
    return StateError(
        f"the savepoint is damaged: {what}",
        operator=operator,
        kept=UNCHANGED,
        do="copy it again from an intact copy, or use another savepoint",
    )
