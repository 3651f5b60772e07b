"""Pages of the documentation: their Python code, run as a reader would run it, and their tables of options."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def read(name: str) -> str:
    """A page's text, by its name without `.md`."""
    return (DOCS / f"{name}.md").read_text(encoding="utf-8")


def python_blocks(name: str) -> list[str]:
    """The Python code of a page, block by block."""
    return python_of(read(name))


def python_of(text: str) -> list[str]:
    """The same for a text outside the directory of pages."""
    return re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def run(folder: Path, code: str, **env: str) -> str:
    """Run code as a script in a directory, with the modules in it and additional environment variables.

    Returns:
        Its output.
    """
    script = folder / "page.py"
    script.write_text(code, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, script.name],
        cwd=folder,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return done.stdout


@dataclass(frozen=True)
class Ran:
    """Result of a script of `run_each`."""

    said: str
    failed: str
    """The traceback; empty if there was none."""
    folder: Path
    """The files that it left in its working directory."""

    def well(self) -> Ran:
        """This result; fails the test if the script failed."""
        assert not self.failed, self.said[-2000:] + self.failed[-3000:]
        return self


_EACH = """
import contextlib, pathlib, runpy, shutil, traceback

def run(script, end):
    given, out, failed = end / "given", (end / "said").open("w"), ""
    for path in given.iterdir() if given.is_dir() else ():
        shutil.move(path, path.name)
    try:
        with contextlib.redirect_stdout(out):
            runpy.run_path(str(script), run_name="__main__")
    except BaseException:
        failed = traceback.format_exc()
    out.close()
    (end / "failed").write_text(failed)
    (end / "left").mkdir()
    for path in pathlib.Path().iterdir():
        if path.name != "page.py":
            shutil.move(path, end / "left" / path.name)

for name in NAMES:
    run(ROOT / name / (name + ".py"), ROOT / name)
"""


def run_each(
    folder: Path, examples: Mapping[str, str], *, given: Mapping[str, Path] | None = None, **env: str
) -> dict[str, Ran]:
    """Run several scripts in one process, one after the other, with one JVM for all.

    Each has its own namespace, and a working directory that contains only its given files. If one fails, the others
    still run.

    Args:
        folder: an empty directory.
        examples: Python code by the name that a traceback shows.
        given: directories whose content is moved into the working directory, by the same names.
        env: additional environment variables.
    """
    (folder / "work").mkdir()
    for name, code in examples.items():
        (folder / name).mkdir()
        (folder / name / f"{name}.py").write_text(code, encoding="utf-8")
    for name, content in (given or {}).items():
        shutil.copytree(content, folder / name / "given")
    names = f"import pathlib\nROOT, NAMES = pathlib.Path({str(folder)!r}), {list(examples)!r}\n"
    run(folder / "work", names + _EACH, **env)
    return {
        name: Ran((folder / name / "said").read_text(), (folder / name / "failed").read_text(), folder / name / "left")
        for name in examples
    }


def section(name: str, title: str = "Options") -> str:
    """The text under a title of the second level."""
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", read(name), re.DOTALL | re.MULTILINE)
    assert found is not None, f"docs/{name}.md has no section '{title}'"
    return found[1]


def options(table: str) -> set[str]:
    """The names in the first column of a table; a row may name several."""
    rows = re.findall(r"^\| ((?:`[\w<>.]+`(?:, )?)+) \|", table, re.MULTILINE)
    return {name.lower() for row in rows for name in re.findall(r"`([\w<>.]+)`", row)}


def defaults(table: str) -> dict[str, str]:
    """The defaults written as code in a table's second column, by option."""
    return dict(re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", table, re.MULTILINE))


def links(name: str) -> list[str]:
    """The other pages in the same directory that a page links to."""
    return re.findall(r"\]\((\w+)\.md\)", read(name))
