"""Pages of the documentation: their Python code, run as a reader would run it, and their tables of options."""

import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.support import cheap_jvm
from tests.support.processes import Tree
from tests.support.waiting import until

DOCS = Path(__file__).parents[2] / "docs"
GALLERY = DOCS.parent / "examples" / "gallery"
HOW_TO = DOCS / "how-to"
# Programs of the gallery that need a server:
GALLERY_OF_SERVERS = ("kafka_to_postgres", "object_store", "postgres_to_delta", "redeliver_github")


def read(name: str) -> str:
    return (DOCS / f"{name}.md").read_text(encoding="utf-8")


def python_blocks(name: str) -> list[str]:
    return python_of(read(name))


def python_of(text: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def printed(name: str) -> list[str]:
    """What a page says that its program prints: its blocks of text."""
    return re.findall(r"^```text\n(.*?)^```", read(name), re.DOTALL | re.MULTILINE)


def printed_of(program: str) -> list[str]:
    """What the how-to pages that show a program of the gallery say that it prints."""
    shown = f"<!-- examples/gallery/{program}.py: begin"
    names = [f"how-to/{path.stem}" for path in sorted(HOW_TO.glob("*.md"))]
    return [block.strip() for name in names if shown in read(name) for block in printed(name)]


def run(folder: Path, code: str, **env: str) -> str:
    """Run code as a script in a directory, with the modules in it; returns its output."""
    script = folder / "page.py"
    script.write_text(code, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, script.name], cwd=folder, env={**cheap_jvm.environment(), **env}, capture_output=True,
        text=True, timeout=500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return done.stdout


@dataclass(frozen=True)
class Ran:
    said: str
    failed: str  # the traceback; empty if there was none
    folder: Path  # the files that it left in its working directory

    def well(self) -> "Ran":
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
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / "each.py").write_text(_EACH, encoding="utf-8")
        (folder / "work").mkdir()
        command, env = [sys.executable, str(folder / "each.py")], cheap_jvm.environment()
        self._tree = Tree(command, folder / "log", env, stdin=subprocess.PIPE, cwd=folder / "work")

    def __enter__(self) -> "Runner":
        return self

    def __exit__(self, *_: object) -> None:
        self._tree.tell(None)  # the end of its input is its end
        self._tree.wait(60)
        self._tree.kill_all()

    def run(self, name: str, code: str, *, given: Path | None = None, **env: str) -> Ran:
        """Run a script; the content of `given` is moved into its working directory."""
        end = self._folder / name
        end.mkdir()
        (end / f"{name}.py").write_text(code, encoding="utf-8")
        if given is not None:
            shutil.copytree(given, end / "given")
        self._tree.tell(json.dumps([str(end), env]))
        until(lambda: (end / "done").exists() or self._tree.poll() is not None, f"the end of {name}", 300)
        assert (end / "done").exists(), f"{name} ended the process:\n{self._tree.text()[-3000:]}"
        return Ran((end / "said").read_text(), (end / "failed").read_text(), end / "left")


def section(name: str, title: str = "Options") -> str:
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
    return re.findall(r"\]\((\w+)\.md\)", read(name))
