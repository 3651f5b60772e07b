"""Pages of the documentation: their Python code, run as a reader would run it, and their tables of options."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.support import cheap_jvm
from tests.support.waiting import until

DOCS = Path(__file__).parents[2] / "docs"
GALLERY = DOCS.parent / "examples" / "gallery"
GALLERY_OF_SERVERS = ("kafka_to_postgres", "object_store")
"""Its programs that need a server."""


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
        env={**cheap_jvm.environment(), **env},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return done.stdout


@dataclass(frozen=True)
class Ran:
    """Result of a script of a `Runner`."""

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
import contextlib, json, os, pathlib, runpy, shutil, sys, traceback

def run(end, env):
    given, out, failed = end / "given", (end / "said").open("w"), ""
    for path in given.iterdir() if given.is_dir() else ():
        shutil.move(path, path.name)
    # Of the variables that a script finds, only these are taken back: pyspark adds others for the session.
    before = {name: os.environ.get(name) for name in env}
    os.environ.update(env)
    try:
        with contextlib.redirect_stdout(out):
            runpy.run_path(str(end / (end.name + ".py")), run_name="__main__")
    except BaseException:
        failed = traceback.format_exc()
    for name, value in before.items():
        os.environ.pop(name) if value is None else os.environ.update({name: value})
    out.close()
    (end / "failed").write_text(failed)
    (end / "left").mkdir()
    for path in pathlib.Path().iterdir():
        shutil.move(path, end / "left" / path.name)
    (end / "done").touch()

for line in sys.stdin:
    end, env = json.loads(line)
    run(pathlib.Path(end), env)
"""


class Runner:
    """A process that runs scripts one after the other, with one JVM for all. Use it in a `with`.

    Each script has its own namespace, and a working directory that contains only its given files. If one fails, the
    others still run.

    Args:
        folder: an empty directory.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._log = folder / "log"
        (folder / "each.py").write_text(_EACH, encoding="utf-8")
        (folder / "work").mkdir()
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(folder / "each.py")],
                cwd=folder / "work",
                env=cheap_jvm.environment(),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
            )

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._process.communicate(timeout=60)  # the end of its input is its end
        finally:
            self._process.kill()
            self._process.wait()

    def run(self, name: str, code: str, *, given: Path | None = None, **env: str) -> Ran:
        """Run a script.

        Args:
            name: of the script, which a traceback shows.
            code: its Python code.
            given: a directory whose content is moved into the working directory.
            env: additional environment variables.
        """
        end = self._folder / name
        end.mkdir()
        (end / f"{name}.py").write_text(code, encoding="utf-8")
        if given is not None:
            shutil.copytree(given, end / "given")
        assert self._process.stdin is not None
        print(json.dumps([str(end), env]), file=self._process.stdin, flush=True)
        until(lambda: (end / "done").exists() or self._process.poll() is not None, f"the end of {name}", 300)
        assert (end / "done").exists(), f"{name} ended the process:\n" + self._log.read_text(errors="replace")[-3000:]
        return Ran((end / "said").read_text(), (end / "failed").read_text(), end / "left")


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
