"""The exchanges that a restore replaces, also after an earlier attempt has moved them aside. Without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_ext.exchange.kinds import KINDS
from spark_ext.exchange.pinned import UNFINISHED, pin, put_back
from spark_ext.jobs.restoring.restored_exchanges import claim_exchanges, exchanges_in
from spark_ext.model.commits import FenceMark
from spark_ext.testing.exchange_driver import WHO, Place, Producer

JOB = "job 'shop'"


def exchange(kind: str, folder: Path, epochs: int) -> Place:
    """An exchange with the claim in entry 0, and an entry per epoch after it."""
    made = Place(kind, str(folder))
    producer = Producer(made).claim()
    for epoch in range(epochs):
        producer.run(epoch, epoch * 10, epoch * 10 + 10)
    return made


@pytest.mark.slow(1, "exchanges of up to sixty entries in Delta logs")
@pytest.mark.parametrize("kind", KINDS)
def test_the_last_numbers_of_what_was_moved_aside_count(tmp_path: Path, kind: str) -> None:
    """A writer of the log that was moved aside first may still create its next entry, 41, in the place of the newest.

    What an attempt has put back in its place has fewer entries, or none.
    """
    state = tmp_path / "state"
    old = exchange(kind, state / "replaced" / "7" / "exchanges" / "x", 40)
    exchange(kind, state / "replaced" / "8" / "exchanges" / "x", 3)
    exchange(kind, state / "replaced" / "8" / "exchanges" / "y", 2)
    exchange(kind, state / "replaced" / "3" / "exchanges" / "x", 60)
    exchange(kind, state / "exchanges" / "y", 5)
    assert claim_exchanges(str(state), {8, 7}, FenceMark(9, 99), "job-1", JOB) == {"x": 40, "y": 6}
    claimed = [(name, master.log.look().mark) for name, _, master in exchanges_in(str(state), JOB)]
    assert claimed == [("y", FenceMark(9, 99))]
    assert old.parts().master.log.look().mark == FenceMark(1, 1000), "claimed by the restore that has moved it"


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_not_put_back_in_full_has_no_say(tmp_path: Path, kind: str) -> None:
    """Nobody has written to it, and its log may be one that cannot be read."""
    state = tmp_path / "state"
    made = exchange(kind, tmp_path / "old", 3)
    pin(made.parts().master, made.path, 2, 4, str(tmp_path / "pinned"))
    place = state / "exchanges" / "x"
    put_back(str(tmp_path / "pinned"), str(place), number=9, lineage=1, job_id="job-1", who=WHO)
    (place / UNFINISHED).touch()
    for entry in place.glob("log/*9*"):
        entry.unlink()
    assert claim_exchanges(str(state), (), FenceMark(2, 20), "job-1", JOB) == {}
