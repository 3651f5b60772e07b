"""The folder of a `files_2pc` sink: its description, its committed files, and what dead drivers have left.

out/_files_2pc.json         the format and the columns, written once
out/_files/                 all data files, committed or not; Spark's readers skip names that begin with `_`
out/_epochs/<sink uid>/     the log: which files are committed (`epoch_log`)
out/day=2013-01-31/part-…   links to committed files, for readers that know nothing of the log
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from pyspark.sql.types import StructType

from spark_ext.datafiles.orphans import delete_orphans
from spark_ext.errors import ConfigurationError, refused
from spark_ext.sinks.contract import Claim
from spark_ext.sinks.files_2pc.epoch_log import EpochLog, unlinked
from spark_ext.storage import LocalFolder, Location, require_conditional_writes, writer_of

ABOUT: Final = "_files_2pc.json"
FILES: Final = "_files"
EPOCHS: Final = "_epochs"
VERSION: Final = 1


@dataclass(frozen=True)
class About:
    """What all files of a folder have in common."""

    format: str
    columns: Mapping[str, Any]  # The schema in Spark's JSON form, all nullable
    partition_by: tuple[str, ...]
    header: bool = False
    separator: str = ","

    @property
    def schema(self) -> StructType:
        """The columns."""
        return StructType.fromJson(dict(self.columns))


class Folder:
    """One folder as the target of sinks."""

    def __init__(self, location: Location, who: str) -> None:
        self.location, self._who = location, who
        self.files = self._below(FILES)
        self._root = location.folder
        if location.local is None:
            require_conditional_writes(location.uri)
        self._logs: dict[str, EpochLog] = {}

    def _below(self, name: str) -> Location:
        return Location(f"{self.location.uri.rstrip('/')}/{name}", self.location.storage_options)

    def log(self, uid: str) -> EpochLog:
        """The log of one sink."""
        if uid not in self._logs:
            self._logs[uid] = EpochLog(self._below(f"{EPOCHS}/{uid}").folder)
        return self._logs[uid]

    # -- its description ----------------------------------------------------------------------------------------------

    def about(self) -> About | None:
        """The folder's description; None if the folder does not exist or is empty."""
        try:
            raw = json.loads(self._root.read(ABOUT))
        except FileNotFoundError:
            self._refuse_foreign()
            return None
        if raw.pop("version") != VERSION:
            raise self._refusal("the folder was written by a newer release", "use that release")
        return About(**{**raw, "partition_by": tuple(raw["partition_by"])})

    def _refuse_foreign(self) -> None:
        for name in self._root.names():
            if name not in (FILES, EPOCHS, ABOUT) and writer_of(name) is None:
                raise self._refusal(
                    f"the folder is not empty and was not written by a sink of this kind; it has '{name}'",
                    "choose another path, or move its content",
                )

    def ensure(self, wanted: About) -> None:
        """Describe a new folder; refuse one whose files are different."""
        found = self.about()
        if found is None:
            text = json.dumps({"version": VERSION, **asdict(wanted)})
            self._root.create_once(ABOUT, text)
            found = self.about()
            assert found is not None
        self.check(found, wanted)

    def check(self, found: About, wanted: About) -> None:
        """Refuse files that are not like those in the folder."""
        for name in ("format", "partition_by", "header", "separator"):
            there, asked = getattr(found, name), getattr(wanted, name)
            if there != asked:
                raise self._refusal(
                    f"the folder was written with {name}={_shown(there)}, the query has {name}={_shown(asked)}",
                    "use the options of the folder's first query, or another path",
                )
        there = {field.name: field.dataType.simpleString() for field in found.schema.fields}
        asked = {field.name: field.dataType.simpleString() for field in wanted.schema.fields}
        for name in {**there, **asked}:
            if there.get(name) != asked.get(name):
                raise self._refusal(
                    f"column '{name}' is {there.get(name, 'missing')} in the folder and {asked.get(name, 'missing')} "
                    "in the query",
                    "change the query to the columns of the folder, or choose another path",
                )

    def _refusal(self, what: str, do: str) -> ConfigurationError:
        return refused(what, self._who, do, kept="the folder is unchanged")

    # -- its files ----------------------------------------------------------------------------------------------------

    def uids(self) -> list[str]:
        """The sinks that have written here."""
        return sorted(self._root.names(EPOCHS))

    def place_of(self, path: str) -> str:
        """The path or URI of a committed file."""
        return f"{self.files.uri}/{path}"

    def committed(self) -> Iterator[dict[str, Any]]:
        """The records of all committed files (`path`, `size`, `rows`, `partition`), by sink and in commit order."""
        for uid in self.uids():
            for entry in self.log(uid).entries():
                yield from entry.get("files", ())

    def publish(self, paths: Iterable[str]) -> None:
        """Link committed files into the folder, which is on a file system; existing links are skipped."""
        assert isinstance(self._root, LocalFolder)
        for name in paths:
            if not self._root.has(name):
                self._root.link(self._root.path / FILES / name, name)

    def link_earlier(self, claim: Claim) -> bool:
        """Make the links that starts before a claim were not to make; returns whether there were any to make."""
        entries = self.log(claim.sink).entries()
        paths = unlinked(one for one in entries if one["kind"] != "claim" or one["incarnation"] < claim.incarnation)
        self.publish(paths)
        return bool(paths)

    def clean(self, claim: Claim) -> int:
        """Delete what dead incarnations have left; only once the claim is in the log, when they can no longer commit.

        Committed files stay, and so do those of the claiming incarnation, of sinks outside a job (incarnation 0) and
        of other uids.
        """
        deleted = delete_orphans(self.files, claim, lambda: self._committed_names(claim.sink))
        self.log(claim.sink).sweep(lambda writer: 0 < int(writer) < claim.incarnation)
        return deleted

    def _committed_names(self, uid: str) -> frozenset[str]:
        files = (file for entry in self.log(uid).entries() for file in entry.get("files", ()))
        return frozenset(file["path"].rpartition("/")[2] for file in files)


def _shown(value: object) -> str:
    return ",".join(value) or "''" if isinstance(value, tuple) else repr(value)
