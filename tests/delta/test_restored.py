"""A table's history: which commits of a sink it still holds, the version after an epoch, and what versions share."""

import json
from typing import Any

import pytest

from spark_ext.delta.entries import LogEntry, before_all, difference, parse, position_after
from spark_ext.delta.restored import CLAIM, SINK, Fault, find_fault, restored_to
from spark_ext.model.commits import Epoch

UID = "out"


def history(*commits: str) -> list[dict[str, Any]]:
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
    ("commits", "seen", "fault"),
    [
        (["create", "epoch", "epoch"], None, None),
        (["create", "epoch", "epoch", "restore 1"], None, Fault(3, (2,), 2)),
        (["create", "epoch", "epoch", "restore 0"], None, Fault(3, (1, 2), 2)),
        (["create", "epoch", "epoch", "other", "restore 1", "other"], None, Fault(4, (2,), 3)),
        (["create", "epoch", "epoch", "restore 1", "restore 2"], None, None),
        (["create", "epoch", "epoch", "restore 1", "restore 2", "restore 3"], None, Fault(5, (2,), 4)),
        (["create", "epoch", "epoch", "restore 1", "restore 2", "restore 3", "restore 4"], None, None),
        (["create", "epoch", "other", "other", "restore 2"], None, None),
        (["create", "epoch", "claim", "restore 1"], None, None),
        (["create", "epoch", "epoch another", "restore 1"], None, None),
        (["create", "other", "restore 0"], None, None),
        (["create", "epoch", "restore"], None, Fault(2, (), 1)),
        (["create", "epoch", "restore", "restore 1"], None, None),
        (["create", "epoch", "restore", "restore 2"], None, Fault(3, (), 1)),
        (["create", "epoch", "restore", "epoch", "other", "restore 3"], None, None),
        # Epochs that were taken away before a claim have been given up, by `job.reset`.
        (["create", "epoch", "restore 0", "claim"], None, None),
        (["create", "epoch", "restore 0", "claim", "epoch", "restore 3"], None, Fault(5, (4,), 4)),
        (["create", "epoch", "restore 0", "claim", "restore 2"], None, None),
        # Everything after the last look is examined.
        (["create", "epoch", "restore 0", "epoch"], 1, Fault(2, (1,), None)),
        (["create", "epoch", "restore 0", "epoch", "restore 1"], 1, Fault(4, (3,), None)),
        (["create", "epoch", "other", "restore 1", "epoch"], 2, None),
        (["create", "epoch", "epoch", "restore 1", "restore 2", "other"], 4, None),
        (["create", "epoch", "epoch", "restore 1", "restore 2", "restore 3"], 4, Fault(5, (2,), 4)),
        (["create", "epoch", "restore", "claim", "other", "restore 3"], 3, None),
        # What the sink rolled back may not return.
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
def test_the_table_has_to_hold_what_the_sink_has_committed(
    commits: list[str], seen: int | None, fault: Fault | None
) -> None:
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


def log(*commits: str) -> list[LogEntry]:
    """The commits from version 0 on.

    `1:5` is epoch 5 of lineage 1; `claim 1`, `roll 1 4`: the same lineage, back to version 4; `restore 4`; `other` adds
    rows, `optimize` does not; `columns` is the sink's.
    """
    entries = []
    for version, commit in enumerate(commits):
        what, *rest = commit.split()
        numbers: dict[str, int] = {}
        operation, parameters = "WRITE", {}
        changes = what not in ("create", "claim", "optimize", "columns")
        if ":" in what:
            lineage, number = what.split(":")
            numbers = {f"spark_ext:{UID}:{lineage}:q": int(number), f"fence:{UID}": 1}
        elif what in ("claim", "roll"):
            numbers = {f"lineage:{UID}": int(rest[0]), f"fence:{UID}": 1}
        if what == "columns":
            operation, numbers = "ADD COLUMN", {f"fence:{UID}": 1}
        if what == "roll":
            numbers[f"rolled_back:{UID}"] = int(rest[0])
        if what in ("roll", "restore"):
            operation, parameters = "RESTORE", {"version": rest[-1]} if rest else {"datetime": "9"}
        actions = [
            {"commitInfo": {"operation": operation, "operationParameters": parameters}},
            {"add": {"path": "f", "dataChange": changes}},
            *({"txn": {"appId": name, "version": number}} for name, number in numbers.items()),
        ]
        entries.append(parse(version, "\n".join(json.dumps(action) for action in actions), UID))
    return entries


def after(entries: list[LogEntry], lineage: int, number: int, query_id: str = "q") -> int:
    epoch = Epoch(UID, lineage, query_id, number, 1)
    held = [entry.epoch[2] for entry in entries if entry.epoch is not None and entry.epoch[0] == epoch.application]
    return position_after(entries, len(entries) - 1, epoch, max(held, default=None))


BEGUN = ["create", "claim 1", "1:0", "1:2", "other", "optimize", "claim 1", "1:3", "other"]
RESTORED = [*BEGUN, "claim 2", "roll 2 6", "2:3", "2:5", "other"]


@pytest.mark.parametrize(
    ("commits", "lineage", "number", "version"),
    [
        (BEGUN, 1, 3, 8),
        (BEGUN, 1, 9, 8),
        (BEGUN, 1, 2, 6),
        (BEGUN, 1, 1, 2),
        (BEGUN, 1, 0, 2),
        (BEGUN, 1, -1, 1),
        (["create", "other", "claim 1"], 1, 4, 2),
        (["create", "other", "1:3"], 1, 2, 1),
        (RESTORED, 1, 3, 9),
        (RESTORED, 1, 2, 6),
        (RESTORED, 1, -1, 1),
        (RESTORED, 2, 2, 10),
        (RESTORED, 2, 4, 11),
        (RESTORED, 2, 5, 13),
        ([*BEGUN, "claim 2", "2:4"], 1, 3, 9),
        ([*BEGUN, "claim 2", "2:4"], 2, 3, 9),
        (["create", "1:0", "claim 2", "2:0", "claim 3", "roll 3 1", "3:0"], 1, 0, 2),
        (["create", "claim 1", "claim 2", "2:0"], 1, 4, 2),
        (["create", "1:0", "restore 0", "claim 2", "2:0"], 2, -1, 3),
        (["create", "1:0", "restore 0", "other"], 1, 0, 1),
        (["create", "1:0", "1:1", "restore 1", "restore 2", "other", "1:2"], 1, 1, 5),
        (["create", "1:0", "restore"], 1, 0, 1),
        (["create", "1:0", "columns", "1:1"], 1, 0, 1),
        (["create", "1:0", "columns", "other", "1:1"], 1, 0, 3),
        (["create", "columns", "1:0", "other"], 1, 0, 3),
        (["create", "claim 5", "5:0", "claim 3", "3:0", "3:1"], 3, -1, 3),
        (["create", "claim 5", "5:0", "claim 3"], 3, -1, 3),
    ],
)
def test_the_position_is_before_what_came_later(commits: list[str], lineage: int, number: int, version: int) -> None:
    """The last two: the uid has moved to a query of a lower lineage."""
    assert after(log(*commits), lineage, number) == version


def test_the_search_reads_no_more_than_it_has_to() -> None:
    entries = log(*RESTORED)

    class Short:
        def __init__(self, begin: int) -> None:
            self.begin = begin

        def __getitem__(self, version: int) -> LogEntry:
            assert version >= self.begin
            return entries[version]

    newest = len(entries) - 1
    assert position_after(Short(12), newest, Epoch(UID, 2, "q", 5, 1), 5) == 13
    assert position_after(Short(11), newest, Epoch(UID, 2, "q", 4, 1), 5) == 11
    assert position_after(Short(3), newest, Epoch(UID, 1, "q", 2, 1), 3) == 6
    assert position_after(Short(6), 8, Epoch(UID, 1, "q", 3, 1), 3) == 8
    begun = log("other", "other", "other", "claim 1", "other")
    assert difference(begun, 4, 3).foreign() == begun[4]


@pytest.mark.parametrize(
    ("commits", "wanted", "own", "foreign"),
    [
        (["create", "1:0", "1:1"], 1, True, None),
        (["create", "1:0", "claim 2", "optimize"], 1, False, None),
        (["create", "1:0", "other", "claim 2"], 1, False, 2),
        (["create", "1:0", "other", "1:1", "other"], 1, True, 2),
        (["create", "1:0", "1:1", "claim 2", "roll 2 1", "claim 2"], 1, False, None),
        (["create", "1:0", "1:1", "claim 2", "roll 2 1", "claim 2"], 2, True, None),
        (["create", "1:0", "1:1", "claim 2", "roll 2 1", "claim 2"], 0, True, None),
        (["create", "1:0", "1:1", "roll 2 1", "2:0", "roll 3 2"], 2, False, None),
        (["create", "1:0", "1:1", "roll 2 1", "2:0", "roll 3 2"], 4, True, None),
        (["create", "1:0", "1:1", "restore 1"], 2, True, 3),
        (["create", "1:0", "1:1", "restore 1"], 1, False, 3),
        (["create", "1:0", "1:1", "restore"], 1, True, 3),
        (["create", "1:0", "1:1", "restore 1", "restore 2"], 2, False, 4),
    ],
)
def test_what_a_roll_back_takes_or_brings(commits: list[str], wanted: int, own: bool, foreign: int | None) -> None:
    entries = log(*commits)
    found = difference(entries, len(entries) - 1, wanted)
    assert found.is_own is own
    other = found.foreign()
    assert (None if other is None else other.version) == foreign


def test_the_version_before_all_epochs_of_a_sink() -> None:
    assert before_all(log("create", "other", "claim 1", "1:3", "roll 2 1", "2:3"), 5) == 2
    assert before_all(log("create", "other", "claim 1"), 2) is None
