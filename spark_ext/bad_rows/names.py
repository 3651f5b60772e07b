"""The names of files of bad rows, before they are in the table; and which of them count. Pure.

`<state>/bad_rows/pending/<uid>/<epoch>-<lineage>-<key>/<incarnation>/<range>-<rows>-<rules>.parquet`

The key is a hash of the source's offset at the end of the epoch, so files of an epoch that was planned again otherwise
are distinguished from those that count. A start of the job with another number of readers cuts ranges differently:
hence the incarnation. Each of its attempts at a range writes the same file. The rules are a hash of the options and the
schema that decide which rows are bad. A start that reads an epoch that an earlier one had planned leaves
`<incarnation>/again-<rules>`, so that it is known although it may find no bad row.

Those of sinks are named by Spark's id of the query, so that they are found under whatever name query and sink have:

`<state>/bad_rows/sinks/<query>/<uid>/<epoch>-<lineage>-<query>/<incarnation>/<mark>-<rows>.parquet`

Each attempt to commit an epoch writes a file under a mark of its own. The target keeps the mark with the epoch, and so
says which file counts. `<epoch>-<lineage>-<query>/decided/<mark>.json` repeats that once it is known.
`<epoch>-<lineage>-<query>/rules.json` has what was counted by rule in the epoch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from spark_ext.model.offsets import Json, SourceOffset

FOLDER: Final = "bad_rows"  # the folder in the state directory
PENDING: Final = "pending"  # the folder with what is not in the table yet, by source
SINKS: Final = "sinks"  # the folder with what is not in the table yet, by query and sink
WRITTEN: Final = "written"  # of a sink: the folder with what tasks have left, when it was too much for a message
TABLE: Final = "table"  # the folder with the table, unless the source names another place

_NO_RULES: Final = frozenset(  # options that do not decide which rows are bad
    {"uid", "on_bad_row", "bad_rows_path", "max_bad_share", "max_bad_rows", "readers", "discovery_interval"}
    | {"max_rows_per_epoch", "max_bytes_per_epoch"}
)

_EPOCH: Final = re.compile(r"(\d+)-(\d+)-([0-9a-f]{16})")
_FILE: Final = re.compile(r"([0-9a-f]{32})-(\d+)(?:-([0-9a-f]{16}))?\.parquet")
_AGAIN: Final = re.compile(r"again-([0-9a-f]{16})")
_DECIDED: Final = re.compile(r"(\d+-\d+-[0-9a-f]{16})/decided/([0-9a-f]{32})\.json")
_WRITTEN: Final = re.compile(r"written/(\d+)-[0-9a-f]{32}\.parquet")


@dataclass(frozen=True, order=True)
class EpochName:
    """An epoch of a source or sink."""

    number: int
    lineage: int
    key: str  # see `key_of`; of a sink `query_key`

    def __str__(self) -> str:
        return f"{self.number}-{self.lineage}-{self.key}"

    @classmethod
    def parse(cls, name: str) -> EpochName | None:
        """Read the name of a folder; None if it is not one of these."""
        found = _EPOCH.fullmatch(name)
        return None if found is None else cls(int(found[1]), int(found[2]), found[3])


@dataclass(frozen=True, order=True)
class PendingFile:
    """A file of bad rows of one range."""

    epoch: EpochName
    incarnation: int
    range: str  # see `range_name`; of a sink the mark, see `marked`
    rows: int
    rules: str = ""  # see `rules_of`; "" for those of sinks

    @property
    def name(self) -> str:
        """Relative to the folder of what is pending."""
        rules = f"-{self.rules}" if self.rules else ""
        return f"{self.epoch}/{self.incarnation}/{self.range}-{self.rows}{rules}.parquet"

    @classmethod
    def parse(cls, name: str) -> PendingFile | None:
        """Read a name; None if it is not one of these, such as that of a draft."""
        found = _of_start(name, _FILE)
        if found is None:
            return None
        epoch, incarnation, file = found
        return cls(epoch, incarnation, file[1], int(file[2]), file[3] or "")


@dataclass(frozen=True, order=True)
class Again:
    """That a start of the job reads an epoch that an earlier one had planned."""

    epoch: EpochName
    incarnation: int
    rules: str

    @property
    def name(self) -> str:
        """Relative to the folder of what is pending."""
        return f"{self.epoch}/{self.incarnation}/again-{self.rules}"

    @classmethod
    def parse(cls, name: str) -> Again | None:
        """Read a name; None if it is not one of these."""
        found = _of_start(name, _AGAIN)
        if found is None:
            return None
        epoch, incarnation, note = found
        return cls(epoch, incarnation, note[1])


def _of_start(name: str, form: re.Pattern[str]) -> tuple[EpochName, int, re.Match[str]] | None:
    """Epoch, incarnation and last part of a name, if that has a form; None if it is not one of these."""
    parts = name.split("/")
    if len(parts) != 3 or not parts[1].isdigit():
        return None
    epoch, last = EpochName.parse(parts[0]), form.fullmatch(parts[2])
    return None if epoch is None or last is None else (epoch, int(parts[1]), last)


def pending_folder(state: str, uid: str) -> str:
    """Path or URI of the folder in which a source's bad rows wait for the commit of their epoch."""
    return f"{state.rstrip('/')}/{FOLDER}/{PENDING}/{uid}"


def query_key(query_id: str) -> str:
    """What stands for a query in the names of its sinks' files."""
    return blake2b(query_id.encode(), digest_size=8).hexdigest()


def sinks_folder(state: str, query_id: str) -> str:
    """Path or URI of the folder in which the bad rows of a query's sinks wait, by the sinks' uids."""
    return f"{state.rstrip('/')}/{FOLDER}/{SINKS}/{query_key(query_id)}"


def marked(mark: int) -> str:
    """How a mark is spelled in names."""
    return f"{mark:032x}"


def decided_name(epoch: EpochName, mark: int) -> str:
    """The name of the file that says that a mark counts, relative to the sink's folder."""
    return f"{epoch}/decided/{marked(mark)}.json"


def failures_name(epoch: EpochName) -> str:
    """The name of the file with what was counted by rule in an epoch, relative to the sink's folder."""
    return f"{epoch}/rules.json"


def decided(names: Iterable[str]) -> dict[str, str]:
    """By the name of an epoch the mark that counts, as it is spelled."""
    found = (_DECIDED.fullmatch(name) for name in names)
    return {match[1]: match[2] for match in found if match is not None}


def written_name(epoch: int, unique: str) -> str:
    """The name of what a task leaves for the commit of its epoch, relative to the sink's folder."""
    return f"{WRITTEN}/{epoch}-{unique}.parquet"


def epoch_of_written(name: str) -> int | None:
    """The number of the epoch of such a file; None if it is none."""
    found = _WRITTEN.fullmatch(name)
    return None if found is None else int(found[1])


def default_table(state: str) -> str:
    """Path or URI of the table of a job whose sources name no other."""
    return f"{state.rstrip('/')}/{FOLDER}/{TABLE}"


def table_in_file(state: str, table: str) -> str:
    """How a file names the table in which its rows belong: "" for that of the state directory, which may be moved."""
    return "" if table == default_table(state) else table


def key_of(end: SourceOffset) -> str:
    """What tells the end of an epoch from any other one of its source: equal for each replay, in every release."""
    relevant = {name: value for name, value in end.to_json().items() if name != "version"}
    return blake2b(_canonical(relevant), digest_size=8).hexdigest()


def range_name(channel: str, start: Json, end: Json) -> str:
    """The name of a range of a channel: equal for each attempt at it."""
    return blake2b(_canonical([channel, start, end]), digest_size=16).hexdigest()


def rules_of(options: Mapping[str, Json], schema: str) -> str:
    """What stands for the rules by which rows are bad: the source's options, without secrets, and its schema."""
    relevant = {name: value for name, value in options.items() if name not in _NO_RULES}
    return blake2b(_canonical([relevant, schema]), digest_size=8).hexdigest()


def chosen(files: Iterable[PendingFile], again: Iterable[Again] = ()) -> dict[EpochName, tuple[PendingFile, ...]]:
    """The files that count, by epoch: of each epoch those of one start.

    Every start that has read an epoch to its end by the same rules has found the same rows, and one that was
    interrupted has found fewer. So that with the most rows counts; of equal ones the newest. If the rules were changed
    in between, what was found by the older ones is not bad any more, or was not found yet: the newest start that has
    read anything of the epoch says which rules count.
    """
    starts: dict[EpochName, dict[tuple[int, str], list[PendingFile]]] = {}
    for one in again:
        starts.setdefault(one.epoch, {}).setdefault((one.incarnation, one.rules), [])
    for file in files:
        starts.setdefault(file.epoch, {}).setdefault((file.incarnation, file.rules), []).append(file)
    return {epoch: tuple(sorted(_fullest(found))) for epoch, found in sorted(starts.items())}


def _fullest(starts: Mapping[tuple[int, str], list[PendingFile]]) -> list[PendingFile]:
    _, rules = max(starts)
    same = [start for start in starts if start[1] == rules]
    return starts[max(same, key=lambda start: (sum(file.rows for file in starts[start]), start))]


def _canonical(value: Json) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
