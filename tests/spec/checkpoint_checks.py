"""What is asked of the model of checkpoints, exchanges and restores; `checks` has the commit protocol."""

from collections.abc import Mapping
from typing import Final

from tests.spec.checks import ENDS, Check
from tests.spec.tlc import Constant

SAFE: Final = ("AtMostOnce", "FinishedIsComplete", "CutIsConsistent", "InFlightIsKept", "AlignedIsOneCut")

UNALIGNED: Final[Mapping[str, Constant]] = {
    "Shape": "chain", "Rows": 2, "Live": frozenset[str](), "MaxCheckpoints": 1, "Late": True,
    "Modes": frozenset({"unaligned"}), "Aborts": False, "Releases": True, "MaxRestores": 0, "LeftOut": frozenset[str](),
}  # fmt: skip
"""Two queries; looks at their commits may be stale, and what nobody needs is released."""

RESTORE: Final[Mapping[str, Constant]] = {**UNALIGNED, "MaxRestores": 1}  # the same, and a restore
ONE_ROW: Final[Mapping[str, Constant]] = {**RESTORE, "Rows": 1}  # enough for most of what can go wrong with a restore

TWICE: Final[Mapping[str, Constant]] = {
    **ONE_ROW, "Late": False, "Releases": False, "MaxCheckpoints": 2, "MaxRestores": 2,
}  # fmt: skip
"""Two checkpoints and two restores: the second may be of what the first has abandoned, or come in the middle of it."""

BOTH: Final[Mapping[str, Constant]] = {
    **UNALIGNED, "Rows": 1, "Modes": frozenset({"aligned", "unaligned"}), "Aborts": True,
}  # fmt: skip
"""An aligned checkpoint may turn unaligned, while releases are made."""

ALIGNED: Final[Mapping[str, Constant]] = {
    **UNALIGNED, "Shape": "diamond", "Rows": 1, "Late": False, "Modes": frozenset({"aligned"}), "Releases": False,
}  # fmt: skip
"""A row reaches the target by two ways, one of them through a third query."""

JOIN: Final[Mapping[str, Constant]] = {**ALIGNED, "Shape": "join"}
"""Two roots; each may end at any time, before or after a barrier."""

LIVE: Final[Mapping[str, Constant]] = {**JOIN, "Live": frozenset({"c"}), "Aborts": True}
"""One of the roots has no more rows and does not end."""


def _check(
    name: str, constants: Mapping[str, Constant], left_out: str = "", broken: str = "", why: str = "", *,
    properties: tuple[str, ...] = (),
) -> Check:  # fmt: skip
    return Check(name, constants, left_out, broken, why, SAFE, properties, "checkpoint")


CHECKS: Final = (
    _check("unaligned cuts and releases", UNALIGNED),
    _check("a restore", RESTORE),
    _check("two restores", TWICE),
    _check("aligned, or turned unaligned", BOTH),
    _check("aligned in a diamond", {**ALIGNED, "Aborts": True}),
    _check("an aligned cut is restored", {**ALIGNED, "MaxRestores": 1}),
    _check("a restored job can end", ONE_ROW, properties=(ENDS,)),
    _check("a job with barriers can end", JOIN, properties=(ENDS,)),
    _check("a job with an aborted barrier can end", LIVE, properties=(ENDS,)),
)
"""The protocol itself."""

DEEP: Final = (
    _check("unaligned in a diamond", {**UNALIGNED, "Shape": "diamond", "Rows": 1}),
    _check("aligned in a diamond, two rows", {**ALIGNED, "Rows": 2}),
    _check("two checkpoints in a diamond", {**ALIGNED, "Aborts": True, "MaxCheckpoints": 2}),
    _check("both kinds and a restore", {**BOTH, "Rows": 2, "MaxRestores": 1}),
    _check("two restores and late commits", {**TWICE, "Late": True, "Releases": True}),
)
"""The same with more of everything, which takes minutes."""

MUTANTS: Final = (
    _check(
        "a cut of what was seen", UNALIGNED, "step back", "CutIsConsistent",
        "a consumer's cut is beyond its producer's, which Spark has not committed yet",
    ),
    _check(
        "a cut of what was seen, restored", {**ONE_ROW, "Releases": False}, "step back", "AtMostOnce",
        "the producer writes again what the consumer has read",
    ),
    _check(
        "a release without holds", UNALIGNED, "hold", "InFlightIsKept",
        "rows that are in flight in a checkpoint are deleted",
    ),
    _check(
        "a release without holds, then a restore", ONE_ROW, "hold", "FinishedIsComplete",
        "the restored consumer does not find the rows that were in flight",
    ),
    _check(
        "a hold from the completion", UNALIGNED, "hold at once", "InFlightIsKept",
        "while files are pinned, queries advance and rows of the cut are deleted",
    ),
    _check(
        "a release behind the commits", UNALIGNED, "behind the cut", "InFlightIsKept",
        "a consumer has to step back behind rows that are deleted",
    ),
    _check(
        "barriers that nobody waits for", ALIGNED, "wait at the barrier", "AlignedIsOneCut",
        "rows from after the barrier of one source are in the cut",
    ),
    _check(
        "a seal that is not read yet", ALIGNED, "read to its end", "AlignedIsOneCut",
        "a query stamps, or does not wait, while rows of a sealed exchange are still to be read",
    ),
    _check(
        "a seal that does not count", JOIN, "a seal counts", ENDS,
        "a source waits for the barrier of one that has ended without",
    ),
    _check(
        "an abort that is not heard", LIVE, "an abort is heard", ENDS,
        "a source waits for a barrier that is not stamped any more",
    ),
    _check(
        "a restore in the same lineage", {**ONE_ROW, "Releases": False}, "lineage", "FinishedIsComplete",
        "the target takes an epoch after the restore for the one that was rolled back",
    ),
    _check(
        "a number with the last row", TWICE, "number first", "AtMostOnce",
        "two restores, the first of them interrupted, cut an exchange for the same lineage",
    ),
    _check(
        "a restore without a claim", {**ONE_ROW, "Releases": False}, "claim", "AtMostOnce",
        "a driver from before the restore commits after the rollback",
    ),
    _check(
        "a restore without cuts", {**ONE_ROW, "Releases": False}, "cut", "AtMostOnce",
        "consumers read what was abandoned, and what is written instead",
    ),
    _check(
        "a cut that hides all before it", TWICE, "ancestry", "FinishedIsComplete",
        "a restore that was interrupted hides what another checkpoint has in flight",
    ),
    _check(
        "the newest version of the target", {**ONE_ROW, "Releases": False}, "version", "AtMostOnce",
        "the target is rolled back to a version that is beyond the cut",
    ),
)  # fmt: skip
"""The protocol without one of its rules."""
