"""Checks the models of the protocols, and that each rule of them is needed: `make spec`.

python -m tests.spec [PART OF A NAME | commit | checkpoint | deep]

`deep`: with more starts, rows, checkpoints and queries; some twenty minutes.
"""

import sys

from tests.spec import checkpoint_checks, checks
from tests.spec.checks import run

DEEP = (*checks.DEEP, *checkpoint_checks.DEEP)
CHECKS = (*checks.CHECKS, *checks.SLOW, *checks.MUTANTS, *checkpoint_checks.CHECKS, *checkpoint_checks.MUTANTS)


def main(wanted: str = "") -> int:
    """Run the checks with this in their name, or of this model; returns the exit code."""
    problems = []
    chosen = [check for check in CHECKS if wanted in check.name or wanted == check.module]
    for check in DEEP if wanted == "deep" else chosen:
        answer, problem = run(check, limit=1700, minutes=wanted == "deep")
        shown = f"{answer.states:>9,} states {answer.seconds:6.1f} s"
        if problem:
            problems.append(problem)
            print(f"{shown}  WRONG    {check.name}", flush=True)
        elif check.left_out:
            print(f"{shown}  refuted  {check.name}: {answer.broken} after {len(answer.steps)} steps", flush=True)
        else:
            print(f"{shown}  holds    {check.name}: {', '.join((*check.invariants, *check.properties))}", flush=True)
    print("\n".join(problems) or "the models hold, and each of their rules is needed")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
