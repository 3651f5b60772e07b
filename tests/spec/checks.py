"""What is asked of a model: that it holds, and that each of its rules is needed. Here for the commit protocol.

A mutant is the protocol with one of its rules left out. TLC has to refute it: a rule that can be left out is either
superfluous, or the model is too small to show what it is for.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tests.spec.tlc import Answer, Constant, Question, ask

SAFE: Final = ("AtMostOnce", "FinishedIsComplete", "CommitsAreInTarget")
OWNER: Final = "OnlyTheOwnerCommits"
ENDS: Final = "CanFinish"

COPIES: Final[Mapping[str, Constant]] = {
    "Rows": 2, "Batch": 2, "MaxStarts": 3, "Calm": False, "Copies": 1, "Queries": frozenset({"a"}),
    "Places": frozenset({1}), "MaxChanges": 0, "MaxResets": 0, "LeftOut": frozenset[str](),
}  # fmt: skip
"""Starts, zombies, and a state directory that is copied or restored."""

CHANGES: Final[Mapping[str, Constant]] = {
    **COPIES, "MaxStarts": 2, "Copies": 0, "Queries": frozenset({"a", "b"}), "Places": frozenset({1, 2}),
    "MaxChanges": 1, "MaxResets": 1,
}  # fmt: skip
"""A user who edits the script between two starts, and resets."""

CALM: Final[Mapping[str, Constant]] = {**COPIES, "Calm": True}
"""Whatever came before, the last start is left alone, and the user resets what it refuses."""

CALM_TWICE: Final[Mapping[str, Constant]] = {**CALM, "MaxStarts": 2}
"""The same with one start less: a twentieth of the states."""


@dataclass(frozen=True)
class Check:
    name: str
    constants: Mapping[str, Constant]
    left_out: str = ""  # the rule that a mutant lacks
    broken: str = ""  # what must not hold then; "" when everything has to
    why: str = ""  # what happens without the rule
    invariants: tuple[str, ...] = SAFE
    properties: tuple[str, ...] = (OWNER,)
    module: str = "commit"

    @property
    def question(self) -> Question:
        """What TLC is asked. Of a mutant only what it must break, so that the answer does not depend on chance."""
        invariants, properties = self.invariants, self.properties
        constants = dict(self.constants)
        if self.left_out:
            constants["LeftOut"] = frozenset({self.left_out})
            invariants = (self.broken,) if self.broken in self.invariants else ()
            properties = () if invariants else (self.broken,)
        fair = ENDS in properties
        return Question(
            constants, module=self.module, specification="FairSpec" if fair else "Spec", invariants=invariants,
            properties=properties,
        )  # fmt: skip

    def problem(self, answer: Answer) -> str:
        """What is wrong with an answer; "" if nothing is."""
        if not self.left_out:
            if answer.verdict == "holds":
                return ""
            return f"{self.name}: {answer.verdict} {answer.broken}\n{answer.output[-8000:]}"
        if answer.verdict == "refuted" and answer.broken == self.broken and answer.steps:
            return ""
        return f"{self.name}: without the rule '{self.left_out}' {self.broken} must not hold; TLC says {answer.verdict}"


CHECKS: Final = (
    Check("changes and resets", CHANGES),
    Check("every job can end", CALM_TWICE, properties=(OWNER, ENDS)),
    Check("every job can end, after changes", {**CHANGES, "Calm": True}, properties=(OWNER, ENDS)),
)
"""The protocol itself."""

SLOW: Final = (
    Check("copies and zombies", COPIES),
    Check("every job can end, after three starts", CALM, properties=(OWNER, ENDS)),
)
"""Parts of it that take a minute; the tests look at two starts."""

DEEP: Final = (
    Check("four starts", {**COPIES, "MaxStarts": 4}),
    Check("three rows", {**COPIES, "Rows": 3}),
    Check("a copy and changes", {**CHANGES, "Copies": 1}),
)
"""The same with more of everything, which takes minutes."""

MUTANTS: Final = (
    Check(
        "fence by number alone", COPIES, "start id", "FinishedIsComplete",
        "two copies of one state take the same number, and neither fences the other off",
    ),
    Check(
        "target ahead of the state", COPIES, "ahead", "FinishedIsComplete",
        "a restored state plans epochs that the target has with other rows, and takes them for committed",
    ),
    Check(
        "target written by a copy", CALM, "foreign", "FinishedIsComplete",
        "a copy has committed the epoch that this state has planned with other rows",
    ),
    Check(
        "flags of any query", CHANGES, "flags by query", "FinishedIsComplete",
        "a source that moves to another query leaves out what the first one had finished",
    ),
    Check(
        "a writer without identity", COPIES, "identity", "AtMostOnce",
        "an epoch is committed under no lineage, and again when it is replayed",
    ),
    Check("the owner, without identity", COPIES, "identity", OWNER, "a driver commits after its successor's claim"),
    Check(
        "planned taken for committed", COPIES, "newest planned", "FinishedIsComplete",
        "all input is planned, the newest epoch is not committed, and the query is FINISHED",
    ),
    Check(
        "another path under the same uid", CHANGES, "place", "FinishedIsComplete",
        "positions in one input are taken for positions in another",
    ),
    Check(
        "a coordinator that walks", CALM_TWICE, "newest commit", ENDS, "it waits for a commits/N that Spark has deleted"
    ),
)  # fmt: skip
"""The protocol without one of its rules."""


def run(check: Check, *, limit: float = 300, minutes: bool = False) -> tuple[Answer, str]:
    """Ask TLC; returns its answer, and what is wrong with it ("" if nothing is)."""
    answer = ask(check.question, limit=limit, minutes=minutes)
    return answer, check.problem(answer)
