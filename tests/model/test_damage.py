"""Which checkpoint a job is restored from by itself."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from spark_ext.model.damage import Restored, checkpoint_to_restore

AGAIN = "it has been restored from checkpoint {}, and has completed none since"
NONE = "no checkpoint of its present history is retained"


@pytest.mark.parametrize(
    ("retained", "lineage", "restores", "expected"),
    [
        ({}, 1, [], NONE),
        ({3: 1, 4: 1}, 1, [], 4),
        # Restored from 3: what was completed later in the lineage that was abandoned is not the job's past.
        ({3: 1, 4: 1}, 2, [Restored(2, 1, 3)], AGAIN.format(3)),
        ({3: 1, 4: 1, 5: 2}, 2, [Restored(2, 1, 3)], 5),
        # 3 itself is not retained any more; 2 is older.
        ({2: 1, 4: 1}, 2, [Restored(2, 1, 3)], 2),
        # Of a savepoint nobody knows which checkpoints are older.
        ({2: 1, 4: 1}, 2, [Restored(2, 1, None)], NONE),
        # A reset has begun a lineage of its own.
        ({2: 1}, 2, [], NONE),
        # Twice: 7 has been abandoned by the second restore, 4 by the first one.
        ({1: 1, 4: 1, 7: 2}, 3, [Restored(2, 1, 2), Restored(3, 2, 5)], 1),
    ],
)
def test_the_newest_one_of_the_present_history(
    retained: dict[int, int], lineage: int, restores: list[Restored], expected: int | str
) -> None:
    number, why_not = checkpoint_to_restore(retained, lineage, restores)
    assert (why_not if number is None else number) == expected


@given(st.lists(st.sampled_from(["checkpoint", "restore"]), max_size=30), st.integers(1, 4))
def test_it_ends(history: list[str], keep: int) -> None:
    """Whatever comes, a job that restores itself, and fails again at once, stops after the first time."""
    retained: dict[int, int] = {}
    restores: list[Restored] = []
    lineage, last = 1, None
    for number, event in enumerate(history):
        if event == "checkpoint":
            retained = dict(sorted({**retained, number: lineage}.items())[-keep:])
            last = "checkpoint"
            continue
        found, _ = checkpoint_to_restore(retained, lineage, restores)
        assert found is None or last != "restore"
        if found is not None:
            assert found == max(retained), "nothing newer was abandoned, as it always takes the newest one"
            restores.append(Restored(lineage + 1, lineage, found))
            lineage += 1
            last = "restore"
