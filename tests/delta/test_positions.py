"""Positions in a table's log: the version after an epoch, and what two versions do not have in common."""

from __future__ import annotations

import json

import pytest

from spark_ext.delta.entries import LogEntry, parse
from spark_ext.delta.positions import before_all, difference, position_after
from spark_ext.model.commits import Epoch

UID = "out"


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
    """With gaps in the numbers, commits of others, earlier roll backs, and RESTOREs that took epochs away or did not.

    The last two: the uid has moved to a query of a lower lineage.
    """
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
