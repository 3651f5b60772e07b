"""Which bad rows count after restores: those of the newest lineage, and of its ancestors up to where it left. Pure.

A restore begins a lineage where a savepoint was taken of another one. `lineages.json` beside the table remembers this
of each source, and of each sink as `sink:<uid>`, so that the rows of a savepoint can be told also when several
restores came in between.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

NAME: Final = "lineages.json"
"""The file, in the folder of bad rows of the state directory."""


@dataclass(frozen=True)
class Cut:
    """A lineage up to an epoch."""

    lineage: int
    epoch: int
    """The last one that belongs to it."""


@dataclass(frozen=True)
class Ancestry:
    """From where each lineage of each source continues."""

    parents: Mapping[str, Mapping[int, Cut]] = field(default_factory=dict)
    """By source and lineage. A lineage that is not there has started from scratch."""

    @classmethod
    def from_json(cls, text: str) -> Ancestry:
        """Read what `to_json` has written."""
        raw = json.loads(text)
        return cls(
            {uid: {int(lineage): Cut(*cut) for lineage, cut in cuts.items()} for uid, cuts in raw["sources"].items()}
        )

    def to_json(self) -> str:
        """The JSON form."""
        sources = {
            uid: {str(lineage): [cut.lineage, cut.epoch] for lineage, cut in sorted(cuts.items())}
            for uid, cuts in sorted(self.parents.items())
        }
        return json.dumps({"version": 1, "sources": sources}, indent=1)

    def continued(self, uid: str, lineage: int, cut: Cut | None) -> Ancestry:
        """With a new lineage of a source.

        Args:
            cut: from where it continues; None: it starts from scratch.
        """
        own = dict(self.parents.get(uid, {}))
        own.pop(lineage, None)
        return Ancestry({**self.parents, uid: own if cut is None else {**own, lineage: cut}})

    def placed(self, uid: str, cut: Cut, newest: int) -> Cut:
        """A cut in the lineage in which it was made.

        A source that has planned nothing since a restore still has the offset, with the lineage, that it had before.

        Args:
            newest: the job's newest lineage then.
        """
        begun = (lineage for lineage in self.parents.get(uid, {}) if lineage <= newest)
        return Cut(max([cut.lineage, *begun]), cut.epoch)

    def counting(self, uid: str, cut: Cut | None) -> tuple[Cut, ...]:
        """The epochs whose rows belong to a cut: of its lineage, and of that lineage's ancestors.

        Args:
            cut: None: nothing had been read.
        """
        found: list[Cut] = []
        while cut is not None:
            found.append(cut)
            parent = self.parents.get(uid, {}).get(cut.lineage)
            # A lineage has a greater number than that from which it continues.
            cut = parent if parent is not None and parent.lineage < cut.lineage else None
        return tuple(found)


def condition(cuts: tuple[Cut, ...]) -> str:
    """The condition, in SQL, for the rows of these epochs."""
    return " or ".join(f"(lineage = {cut.lineage} and epoch <= {cut.epoch})" for cut in cuts) or "false"
