"""`python docs/site/fetch_scripts.py`: what the site's pages run beside the theme's own scripts, by npm.

They are mermaid, which draws diagrams, and a shim with which the search works in files that were opened without a
server. The site loads nothing from elsewhere, so it has copies of its own. Without npm, or without a network, nothing
is done: the site then shows the text of each diagram, and has no search when its files are opened.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

FOLDER: Final = Path(sys.prefix) / "site-scripts"
"""Where they are put: beside the interpreter's libraries."""

SECONDS: Final = 300
"""Longest time for a download."""


@dataclass(frozen=True)
class Script:
    """A file of an npm package."""

    package: str
    version: str
    member: str
    """Its path in the archive."""
    name: str
    """The name that it gets here."""


MERMAID: Final = Script("mermaid", "11.17.2", "package/dist/mermaid.min.js", "mermaid.min.js")
SHIM: Final = Script("iframe-worker", "1.0.4", "package/shim/index.js", "iframe-worker.js")


def fetch(script: Script) -> str:
    """Fetch one; returns why that was not done, "" if it was."""
    npm = shutil.which("npm")
    if npm is None:
        return "there is no npm"
    with tempfile.TemporaryDirectory() as folder:
        try:
            # The archive alone: what the script needs is in the one file, and nothing of the package is run.
            command = [npm, "pack", f"{script.package}@{script.version}", "--silent"]
            subprocess.run(command, cwd=folder, check=True, timeout=SECONDS, capture_output=True)
            (archive,) = Path(folder).glob("*.tgz")
            with tarfile.open(archive) as packed:
                found = packed.extractfile(script.member)
                assert found is not None
                content = found.read()
        except (OSError, KeyError, ValueError, subprocess.SubprocessError) as problem:
            return f"{type(problem).__name__}: {problem}"
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / script.name).write_bytes(content)
    return ""


if __name__ == "__main__":
    for one in (MERMAID, SHIM):
        reason = fetch(one)
        done = f"was not fetched: {reason}" if reason else f"was fetched into {FOLDER}"
        print(f"{one.package} {done}", file=sys.stderr)
