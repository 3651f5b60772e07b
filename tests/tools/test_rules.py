"""Each rule of `tools.rules` finds the fault that it is for, and nothing in code without it."""

import ast
from collections.abc import Callable, Iterable, Iterator

import pytest

from tools import rules
from tools.rules import File


def file(text: str, path: str = "spark_ext/jobs/a.py") -> File:
    return File(path, ast.parse(text), text.count("\n"))


@pytest.mark.parametrize(
    ("rule", "broken", "whole", "says"),
    [
        (
            rules.chains, "class A: ...\nclass B(A): ...\nclass C(B): ...\nclass D(C): ...",
            "class A: ...\nclass B(A): ...\nclass C(B): ...\nclass OneError(C): ...", "D < C < B < A",
        ),
        (
            rules.assigned_from_outside, "def f(a):\n    a.b.c = 1", "class A:\n    def f(self):\n        self.b = 1",
            "assigns a.b.c",
        ),
        (
            rules.optional_collaborators, "class A:\n    def __init__(self, gates: Gates | None = None): ...",
            "class A:\n    def __init__(self, gates: Gates, folder: str | None): ...", "A takes gates",
        ),
        (
            rules.optional_collaborators, "@dataclass\nclass A:\n    gates: Gates | None",
            "@dataclass(frozen=True)\nclass A:\n    gates: Gates | None", "A takes gates",
        ),
        *(
            (rules.files_outside_storage, call, "text.replace('a', 'b')\nat.replace(hour=1)", call.split("(")[0])
            for call in (
                "os.replace(a, b)", "os.link(a, b)", "os.fsync(1)", "a.replace(b)", "a.rename(b)", "a.hardlink_to(b)",
            )
        ),
        (rules.phrases, 'say("\\n there is\\nno file")', 'say("no file")', "there is"),
        (rules.small_files, "", "\n" * 80, "61 files"),
    ],
)  # fmt: skip
def test_a_fault_is_found(rule: Callable[[Iterable[File]], Iterator[str]], broken: str, whole: str, says: str) -> None:
    many = range(61) if rule is rules.small_files else range(1)
    assert says in "\n".join(rule([file(broken, f"spark_ext/jobs/a{number}.py") for number in many]))
    assert not list(rule([file(whole, f"spark_ext/jobs/a{number}.py") for number in many]))


def test_subjects_of_commits() -> None:
    right = ["jobs: make Job whole", "sinks, sources: share the walker"]
    wrong = ["wip", "Jobs: Make it", "jobs: " + "x" * 70]
    assert not list(rules.subjects(right)) and len(list(rules.subjects(wrong))) == len(wrong)
