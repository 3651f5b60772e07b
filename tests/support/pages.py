"""Pages of the documentation: their Python, started as a reader would start it, and their tables of options."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
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


def run_each(folder: Path, examples: Mapping[str, str], **env: str) -> None:
    """Start several scripts in one process, each with names of its own and in the folder as it was: one JVM for all.

    Args:
        folder: empty; they run in a folder in it.
        examples: Python by the name that a traceback shows.
        env: what else the environment has to have.
    """
    scripts, work = folder / "scripts", folder / "work"
    scripts.mkdir()
    work.mkdir()
    for number, (name, code) in enumerate(examples.items()):
        (scripts / f"{number}-{name}.py").write_text(code, encoding="utf-8")
    starter = f"""
import pathlib, runpy, shutil
for script in sorted(pathlib.Path({str(scripts)!r}).iterdir()):
    runpy.run_path(str(script), run_name="__main__")
    print("ran", script.name)
    for left in pathlib.Path().iterdir():
        if left.name != "page.py":
            shutil.rmtree(left) if left.is_dir() else left.unlink()
"""
    said = run(work, starter, **env).splitlines()
    assert sum(line.startswith("ran ") for line in said) == len(examples)


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
