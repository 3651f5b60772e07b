"""Pages of the documentation: their Python, started as a reader would start it, and their tables of options."""

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
    """The Python of a page, block by block."""
    return python_of(read(name))


def python_of(text: str) -> list[str]:
    """The same of a text that is not in the folder of pages."""
    return re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def run(folder: Path, code: str, **env: str) -> str:
    """Start code as a script in a folder, with modules that are in it and what else the environment has to have.

    Returns:
        What it printed.
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
    """What became of a script of `run_each`."""

    said: str
    failed: str
    """The traceback; empty when there was none."""
    folder: Path
    """What it has left in its working folder."""

    def well(self) -> Ran:
        """Itself, when the script ended well."""
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
    """Start several scripts in one process, one after the other: one JVM for all.

    Each has names of its own, and a working folder in which is only what it was given. One that fails does not keep the
    others from running.

    Args:
        folder: empty.
        examples: Python by the name that a traceback shows.
        given: folders whose content is put into the working folder, by the same names.
        env: what else the environment has to have.
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
    """What stands under a title of the second level."""
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", read(name), re.DOTALL | re.MULTILINE)
    assert found is not None, f"docs/{name}.md has no section '{title}'"
    return found[1]


def options(table: str) -> set[str]:
    """The names in the first column of a table; a row may have several."""
    rows = re.findall(r"^\| ((?:`[\w<>.]+`(?:, )?)+) \|", table, re.MULTILINE)
    return {name.lower() for row in rows for name in re.findall(r"`([\w<>.]+)`", row)}


def defaults(table: str) -> dict[str, str]:
    """The defaults that are written as code in a table's second column, by option."""
    return dict(re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", table, re.MULTILINE))


def links(name: str) -> list[str]:
    """The other pages in its folder that a page links to."""
    return re.findall(r"\]\((\w+)\.md\)", read(name))
