"""RESTORE in a table's history: which commits of a sink the table still holds."""

from __future__ import annotations

from typing import Any

import pytest

from spark_ext.delta.restored import CLAIM, SINK, Fault, find_fault, restored_to

UID = "out"


def history(*commits: str) -> list[dict[str, Any]]:
    """The commits from version 0 on, newest first, as delta-rs shows them."""
    entries: list[dict[str, Any]] = []
    for version, commit in enumerate(commits):
        what, _, where = commit.partition(" ")
        entry: dict[str, Any] = {"version": version, "operation": "WRITE", "operationParameters": {"mode": "Append"}}
        if what == "restore":
            entry |= {"operation": "RESTORE", "operationParameters": {"version": where} if where else {"datetime": "9"}}
        if what == "roll":
            entry |= {"operation": "RESTORE", "operationParameters": {"version": where}, SINK: UID, CLAIM: "roll back"}
        if what in ("claim", "epoch"):
            entry[SINK] = where or UID
        if what == "claim":
            entry[CLAIM] = f"claim of {UID}, incarnation 1"
        entries.insert(0, entry)
    return entries


@pytest.mark.parametrize(
    ("commits", "fault"),
    [
        (["create", "epoch", "epoch"], None),
        (["create", "epoch", "epoch", "restore 1"], Fault(3, (2,), 2)),
        (["create", "epoch", "epoch", "restore 0"], Fault(3, (1, 2), 2)),
        (["create", "epoch", "epoch", "other", "restore 1", "other"], Fault(4, (2,), 3)),
        (["create", "epoch", "epoch", "restore 1", "restore 2"], None),
        (["create", "epoch", "epoch", "restore 1", "restore 2", "restore 3"], Fault(5, (2,), 4)),
        (["create", "epoch", "epoch", "restore 1", "restore 2", "restore 3", "restore 4"], None),
        (["create", "epoch", "other", "other", "restore 2"], None),
        (["create", "epoch", "claim", "restore 1"], None),
        (["create", "epoch", "epoch another", "restore 1"], None),
        (["create", "other", "restore 0"], None),
        (["create", "epoch", "restore"], Fault(2, (), 1)),
        (["create", "epoch", "restore", "restore 1"], None),
        (["create", "epoch", "restore", "restore 2"], Fault(3, (), 1)),
        (["create", "epoch", "restore", "epoch", "other", "restore 3"], None),
        (["create", "epoch", "restore 0", "claim"], None),
        (["create", "epoch", "restore 0", "claim", "epoch", "restore 3"], Fault(5, (4,), 4)),
        (["create", "epoch", "restore 0", "claim", "restore 2"], None),
    ],
    ids=lambda value: ", ".join(value) if isinstance(value, list) else "",
)
def test_the_table_has_to_hold_what_the_sink_has_committed(commits: list[str], fault: Fault | None) -> None:
    """Any RESTORE was refused, also the one by which a user had brought the rows back as the error advised.

    The last three: epochs that were taken away before a claim have been given up, by `job.reset`.
    """
    assert find_fault(history(*commits), UID, None) == fault


@pytest.mark.parametrize(
    ("commits", "seen", "fault"),
    [
        (["create", "epoch", "restore 0", "epoch"], 1, Fault(2, (1,), None)),
        (["create", "epoch", "restore 0", "epoch", "restore 1"], 1, Fault(4, (3,), None)),
        (["create", "epoch", "other", "restore 1", "epoch"], 2, None),
        (["create", "epoch", "epoch", "restore 1", "restore 2", "other"], 4, None),
        (["create", "epoch", "epoch", "restore 1", "restore 2", "restore 3"], 4, Fault(5, (2,), 4)),
        (["create", "epoch", "restore", "claim", "other", "restore 3"], 3, None),
    ],
    ids=lambda value: ", ".join(value) if isinstance(value, list) else "",
)
def test_everything_after_the_last_look_is_examined(commits: list[str], seen: int, fault: Fault | None) -> None:
    """The examination ended at the sink's newest commit, and so missed a RESTORE between the look and that commit."""
    assert find_fault(history(*commits), UID, seen) == fault


@pytest.mark.parametrize(
    ("commits", "seen", "fault"),
    [
        (["create", "epoch", "epoch", "roll 1"], None, None),
        (["create", "epoch", "epoch", "roll 1"], 2, None),
        (["create", "epoch", "epoch", "roll 1", "other", "restore 3"], None, None),
        (["create", "epoch", "epoch", "roll 1", "other", "restore 1"], None, None),
        (["create", "epoch", "epoch", "roll 1", "restore 0"], None, Fault(4, (1,), 3)),
        (["create", "epoch", "epoch", "roll 1", "restore 2"], None, Fault(4, (), 3, (2,))),
        (["create", "epoch", "epoch", "roll 1", "restore 2"], 2, Fault(4, (), 3, (2,))),
        (["create", "epoch", "epoch", "roll 1", "restore 2"], 3, Fault(4, (), 3, (2,))),
        (["create", "epoch", "epoch", "roll 1", "epoch", "restore 2"], None, Fault(5, (4,), 4, (2,))),
        (["create", "epoch", "epoch", "roll 1", "epoch", "restore 3"], None, Fault(5, (4,), 4)),
        (["create", "epoch", "epoch", "roll 1", "roll 2", "restore 2"], None, None),
        (["create", "epoch", "epoch", "roll 1", "roll 2", "restore 3"], None, Fault(5, (2,), 4)),
        (["create", "epoch", "epoch", "roll 1", "restore 2", "restore 3"], None, None),
    ],
    ids=lambda value: ", ".join(value) if isinstance(value, list) else "",
)
def test_what_the_sink_rolled_back_may_not_return(commits: list[str], seen: int | None, fault: Fault | None) -> None:
    assert find_fault(history(*commits), UID, seen) == fault


def test_a_restore_that_the_history_does_not_explain_is_a_fault() -> None:
    commits = history("create", "epoch", "other", "other", "restore 2", "other")
    assert find_fault(commits, UID, None) is None
    assert find_fault(commits[:4], UID, None) == Fault(4), "the sink's commit is out of sight"
    assert find_fault(commits[:4], UID, 1) == Fault(4), "and so is the last look"
    assert find_fault(commits[:1], UID, None) is None, "and so is the RESTORE"


@pytest.mark.parametrize(
    ("parameters", "version"),
    [
        ({"version": "1"}, 1),
        ({"datetime": "1795441883130"}, None),
        ({"version": 1, "timestamp": None}, 1),
        ({"version": None, "timestamp": "2026-11-23 18:31:23.13"}, None),
        ({"version": "7"}, None),
        ({}, None),
        (None, None),
    ],
    ids=["delta-rs", "delta-rs_time", "spark", "spark_time", "not_an_earlier_one", "empty", "absent"],
)
def test_both_engines_name_the_version_of_a_restore(parameters: dict[str, Any] | None, version: int | None) -> None:
    """As `DeltaTable.history` of delta-rs 1.6.6 shows the commits of delta-rs 1.6.6 and of Delta 4.4.0 in Spark."""
    assert restored_to({"version": 7, "operation": "RESTORE", "operationParameters": parameters}) == version


def test_the_error_names_the_version_to_restore() -> None:
    error = str(Fault(7, (3, 5, 6), 6).error("sink 'out'"))
    assert "version 7 of the table is a RESTORE of an earlier one" in error
    assert "lacks what this sink committed in version 3 and 2 later ones" in error
    assert "RESTORE the table to version 6, the newest one that has all commits of this sink" in error
    unknown = str(Fault(7).error("sink 'out'"))
    assert "does not show whether that one has all commits of this sink" in unknown
    assert "put the target back as it was" in unknown
