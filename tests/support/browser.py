"""A real browser for the page, driven by Playwright: a Chromium of this machine, or that of `fetch_browser`."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
VARIABLE: Final = "SPARK_EXT_BROWSER"  # environment variable with the path of another Chromium

ARGUMENTS: Final = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
"""A browser that asks nobody but the server under test."""


FETCHED: Final = Path(sys.prefix) / "browser"  # where `fetch_browser` puts one


def installed() -> str | None:
    """The path of a Chromium of this machine; None if it has none."""
    return os.environ.get(VARIABLE) or next((found for found in map(shutil.which, NAMES) if found), None)


def executable() -> tuple[str, dict[str, str]] | None:
    """The path of a Chromium, and what it needs in its environment; None if not found."""
    found = installed()
    if found:
        return found, {}
    fetched = FETCHED / "chromium"
    return (str(fetched), {"LD_LIBRARY_PATH": str(FETCHED / "lib")}) if fetched.exists() else None


@cache
def missing() -> str:
    """Why no browser can be started; "" if one can."""
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        return "playwright is not installed"
    found = executable()
    if found is None:
        return f"no Chromium on the PATH, in ${VARIABLE} or in {FETCHED}"
    command = [found[0], "--version"]
    done = subprocess.run(command, env={**os.environ, **found[1]}, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else f"{found[0]} cannot be started: {done.stderr.strip()[:200]}"


@contextmanager
def browser() -> Iterator[Any]:
    """A browser with a new, empty profile, until the end of the block."""
    from playwright.sync_api import sync_playwright

    known = executable()
    assert known is not None, missing()
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(
            executable_path=known[0], args=list(ARGUMENTS), env={**os.environ, **known[1]}
        )
        try:
            yield found
        finally:
            found.close()


def axe() -> str:
    """The script of axe-core, which finds what keeps people from using a page."""
    import axe_playwright_python

    return (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text()
