"""`python -m tests.support.fetch_browser`: a Chromium for the tests of the page, by npm, where the machine has none.

Without npm, or without a network, nothing is done: the tests that need a browser are skipped then.
"""

import shutil
import subprocess
import sys
from typing import Final

from tests.support.browser import FETCHED, installed

PACKAGE: Final = "@sparticuz/chromium"
VERSION: Final = "153.0.0"
SECONDS: Final = 300  # longest time for the download
INFLATE: Final = """
const fs = require("fs"), zlib = require("zlib");
const [from, to] = process.argv.slice(1);
fs.createReadStream(from).pipe(zlib.createBrotliDecompress()).pipe(fs.createWriteStream(to, { mode: 0o755 }));
"""


def fetch() -> str:
    """Fetch it; returns why that was not done, "" if it was."""
    if installed():
        return "the machine has one"
    if not shutil.which("npm") or not shutil.which("node"):
        return "npm is missing"
    FETCHED.mkdir(parents=True, exist_ok=True)
    try:
        # No script of a package is run, and none but this one and what it needs is installed.
        _run("npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--no-save", f"{PACKAGE}@{VERSION}")
        files = FETCHED / "node_modules" / PACKAGE / "bin"
        _run("node", "-e", INFLATE, str(files / "chromium.br"), "chromium")
        _run("node", "-e", INFLATE, str(files / "al2023.tar.br"), "libraries.tar")
        _run("tar", "xf", "libraries.tar")
        (FETCHED / "libraries.tar").unlink()
        shutil.rmtree(FETCHED / "node_modules")
    except (OSError, subprocess.SubprocessError) as problem:
        return f"{type(problem).__name__}: {problem}"
    return ""


def _run(*command: str) -> None:
    subprocess.run(command, cwd=FETCHED, check=True, timeout=SECONDS, capture_output=True)


if __name__ == "__main__":
    reason = fetch()
    print(f"no browser was fetched: {reason}" if reason else f"a browser was fetched into {FETCHED}", file=sys.stderr)
