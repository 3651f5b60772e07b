"""Spark's checkpoints of a job that is restored: prepared in a folder of their own, then put in their places.

What may fail because of what the savepoint holds, such as another number of state partitions, is done by `prepare`,
before the restore has changed anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from spark_ext.checkpoints.savepoint import query_folder
from spark_ext.jobs.restoring.restore_targets import REPLACED
from spark_ext.queries.context import checkpoint_of
from spark_ext.spark.logs.checkpoint_directory import put_in_place
from spark_ext.spark.logs.epoch_files import STAMPS
from spark_ext.spark.logs.state_operators import relocate
from spark_ext.spark.logs.state_partitions import repartition
from spark_ext.storage import Location, child, link, local_path, move

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_ext.jobs.restoring.restore_checks import Comparison
    from spark_ext.model.lineages import Lineages

DRAFTS: Final = "restoring"
"""The folder of a state directory in which a restore prepares them; nothing of it is left afterwards."""


def clear_away(state: str, lineage: int, *, again: bool) -> None:
    """Leave nothing where the checkpoints and exchanges of a savepoint are going to be.

    On a file system what is there is moved aside. On an object store only the history of a new job begins with a
    restore: what is there was left by an interrupted one, perhaps of another savepoint, and is deleted.

    Args:
        again: whether a restore was interrupted before this one.
    """
    for name in ("exchanges", "queries"):
        local = local_path(f"{state}/{name}")
        if local is None:
            if again:
                Location.of(f"{state}/{name}", {}).folder.delete_tree()
        elif local.exists():
            aside = local.parent / REPLACED / str(lineage) / name
            aside.parent.mkdir(parents=True, exist_ok=True)
            move(local, aside)


class RestoredStates:
    """The checkpoints of the queries that continue from a savepoint."""

    def __init__(self, comparison: Comparison, state: str, incarnation: int, lineages: Lineages) -> None:
        self._comparison, self._state, self._lineages = comparison, state, lineages
        self._folder = f"{state}/{DRAFTS}/{incarnation}"

    def prepare(self, spark: SparkSession, partitions: Mapping[str, int]) -> None:
        """Make them, from links to the savepoint's files where that is possible."""
        self.discard()
        saved = self._comparison.saved
        for query, name in self._queries():
            place, draft = child(query_folder(name), "checkpoint"), child(self._folder, query)
            for file in saved.below(place):
                link(child(saved.folder, f"{place}/{file}"), child(draft, file))
            for stamp in self._earlier_stamps({query, *self._lineages.later_names(name, saved.about.lineage)}):
                link(str(stamp), child(draft, f"{STAMPS}/{stamp.name}"))
            if query in partitions:
                repartition(spark, draft, partitions[query], f"job '{self._comparison.job}', query '{query}'")
            relocate(draft, checkpoint_of(self._state, query))

    def put(self) -> None:
        """Put them in their places, where there is nothing."""
        for query, _ in self._queries():
            draft, target = child(self._folder, query), checkpoint_of(self._state, query)
            local = local_path(target)
            if local is not None:
                local.parent.mkdir(parents=True, exist_ok=True)
                put_in_place(Path(draft), local)
                continue
            # Epochs count as committed when all else is there.
            names = sorted(Location.of(draft, {}).folder.files(), key=lambda name: name.startswith("commits/"))
            for file in names:
                link(child(draft, file), child(target, file))

    def discard(self) -> None:
        """Delete what is prepared and was not put, also by a restore that was interrupted."""
        with suppress(OSError):
            Location.of(f"{self._state}/{DRAFTS}", {}).folder.delete_tree()

    def _earlier_stamps(self, uids: Iterable[str]) -> Iterator[Path]:
        """The configurations of epochs before the cut; a savepoint has only the last of them.

        The ledger keeps these epochs. An interrupted restore may have moved the stamps aside. On an object store, only
        a new job begins with a restore.
        """
        state = local_path(self._state)
        if state is not None:
            for queries in (state / "queries", *(state / REPLACED).glob("*/queries")):
                for uid in uids:
                    yield from (queries / uid / "checkpoint" / STAMPS).glob("*.json")

    def _queries(self) -> Iterator[tuple[str, str]]:
        """The queries that continue, each with its name in the savepoint."""
        for query, name in self._comparison.names.items():
            part = self._comparison.saved.metadata.queries[name]
            if part.epoch is not None and not part.finished:
                yield query, name
