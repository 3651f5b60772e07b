"""Random histories of a table that is rolled back again and again, against a model that knows the rows of each version.

Epochs with gaps, rows of other writers, compaction, claims, savepoints, and restores of any savepoint, by the position
that was taken with it or by one that is looked up only then.
"""

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from spark_ext.errors import StateError
from spark_ext.model.commits import Epoch
from tests.sinks.delta_2pc.delta_kit import Restore, Start, ids

pytestmark = pytest.mark.slow(8, "hundreds of steps, each of which commits to a Delta table")


@dataclass(frozen=True)
class Savepoint:
    lineage: int
    number: int
    position: Any
    version: int
    own: frozenset[int]


@dataclass
class Model:
    """What the table is to hold: the sink's rows and those of others, by version."""

    own: dict[int, frozenset[int]] = field(default_factory=dict)
    foreign: dict[int, frozenset[int]] = field(default_factory=dict)

    def rows(self, version: int) -> list[int]:
        return sorted(self.own[version] | self.foreign[version])

    def late(self, savepoint: Savepoint) -> int:
        """The version to which a position leads that is looked up now."""
        newest = max(self.own)
        later = (it for it in range(savepoint.version, newest + 1) if self.own[it] != savepoint.own)
        return next(later, newest + 1) - 1


class RolledBackTables(RuleBasedStateMachine):
    savepoints: Bundle[Savepoint] = Bundle("savepoints")

    @initialize()
    def begin(self) -> None:
        self.folder = Path(mkdtemp())
        self.path = self.folder / "t"
        self.driver = Start(self.path, lineage=1)
        self.number, self.row = -1, 0
        self.model = Model()
        self.own: frozenset[int] = frozenset()
        self.foreign: frozenset[int] = frozenset()
        self.driver.begin()
        self.saw()

    def teardown(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def saw(self) -> None:
        for version in range(max(self.model.own, default=-1) + 1, self.version + 1):
            self.model.own[version], self.model.foreign[version] = self.own, self.foreign

    @property
    def version(self) -> int:
        return DeltaTable(self.path).version()

    def new_row(self) -> int:
        self.row += 1
        return self.row

    @rule(gap=st.integers(1, 3))
    def epoch(self, gap: int) -> None:
        self.number += gap
        row = self.new_row()
        self.driver.put(self.number, rows=[{"id": row, "name": "own"}])
        self.own |= {row}
        self.saw()

    @rule()
    def empty_epoch(self) -> None:
        self.number += 1
        self.driver.sink().check(self.driver.epoch(self.number))

    @rule()
    def written_by_others(self) -> None:
        row = self.new_row()
        write_deltalake(self.path, pa.table({"id": [row], "name": ["other"]}), mode="append")
        self.foreign |= {row}
        self.saw()

    @rule()
    def compacted(self) -> None:
        DeltaTable(self.path).optimize.compact()
        self.saw()

    @rule()
    def started_again(self) -> None:
        self.driver.incarnation += 1
        self.driver.begin(planned=self.number)
        self.saw()

    @rule(target=savepoints)
    def savepoint(self) -> Savepoint:
        position = self.driver.sink().position(self.driver.epoch(self.number))
        assert position is not None
        assert position["version"] == self.version
        return Savepoint(self.driver.lineage, self.number, position, self.version, self.own)

    @rule(savepoint=savepoints, late=st.booleans(), repeats=st.integers(1, 2))
    def restored(self, savepoint: Savepoint, late: bool, repeats: int) -> None:
        position = savepoint.position
        if late:
            mine = (self.driver.uid, savepoint.lineage, self.driver.query_id, savepoint.number)
            found = self.driver.sink().position(Epoch(*mine, self.driver.incarnation))
            assert found is not None
            position = found
            assert position["version"] == self.model.late(savepoint)
        wanted, before = position["version"], self.version
        start = Restore(self.path, lineage=self.driver.lineage + 1, incarnation=self.driver.incarnation + 1)
        claim = start.its_claim
        if self.own != savepoint.own and self.foreign - self.model.foreign[wanted]:
            with pytest.raises(StateError, match="another writer has changed its rows"):
                start.sink().check_roll_back(claim, position)
            assert self.version == before
            return
        start.sink().check_roll_back(claim, position)
        assert self.version == before
        start.sink().claim(claim)
        self.saw()
        for _ in range(repeats):
            start.sink().roll_back(claim, position)
        assert self.version == before + 1 + (self.own != savepoint.own)
        if self.own != savepoint.own:
            self.own, self.foreign = savepoint.own, self.model.foreign[wanted]
        self.saw()
        self.driver, self.number = start, savepoint.number

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        if hasattr(self, "model"):
            assert ids(self.path) == self.model.rows(self.version)


TestRolledBackTables = RolledBackTables.TestCase
TestRolledBackTables.settings = settings(max_examples=15, stateful_step_count=20, deadline=None)
