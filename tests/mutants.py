"""`python -m tests.mutants [WORD]`: makes each fault of `tests/mutants.toml` in a copy; the core has to notice it."""

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import tomlkit

ROOT: Final = Path(__file__).parents[1]


@dataclass(frozen=True)
class Mutant:
    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    """Arguments to pytest: tests of the core, one of which has to fail."""


def mutants() -> list[Mutant]:
    content: Any = tomlkit.parse((ROOT / "tests" / "mutants.toml").read_text(encoding="utf-8")).unwrap()
    return [Mutant(**{**one, "tests": tuple(one["tests"])}) for one in content["mutant"]]


def copy(to: Path) -> None:
    """All files of the project; the environment is shared."""
    shutil.copytree(ROOT, to, symlinks=True, ignore=shutil.ignore_patterns(".git", ".venv", "out", "*cache*"))
    (to / ".venv").symlink_to(ROOT / ".venv")


def notices(mutant: Mutant, where: Path) -> tuple[bool, str]:
    """Whether a test of the core fails with the fault, and pytest's last line."""
    file = where / mutant.file
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-x", "-q", "-m", "core", "-p", "no:cacheprovider", *mutant.tests],
            cwd=where, env={**os.environ, "PYTHONPATH": str(where)}, capture_output=True, text=True, check=False,
        )  # fmt: skip
    finally:
        file.write_text(text, encoding="utf-8")
    # Nothing else than a failed test counts, such as no test or one that cannot be collected.
    return done.returncode == pytest.ExitCode.TESTS_FAILED, (done.stdout.strip() or done.stderr).splitlines()[-1]


def main() -> int:
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder, "project")
        copy(where)
        for mutant in mutants():
            if " ".join(sys.argv[1:]) in mutant.name:
                noticed, line = notices(mutant, where)
                missed += not noticed
                print(f"{'noticed' if noticed else 'MISSED ':7}  {mutant.name}: {line}", flush=True)
    return missed


if __name__ == "__main__":
    sys.exit(main())
