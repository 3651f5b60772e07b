"""A real browser for tests of the page: a Chromium that this machine has, driven by Playwright. None is downloaded."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")

VARIABLE: Final = "SPARK_EXT_BROWSER"
"""Environment variable with the path of another Chromium."""

ARGUMENTS: Final = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
"""A browser that asks nobody but the server under test."""


def executable() -> str | None:
    """The path of a Chromium; None if there is none."""
    given = os.environ.get(VARIABLE)
    if given:
        return given
    return next((found for found in map(shutil.which, NAMES) if found), None)


def missing() -> str:
    """Why no browser can be started; "" if one can."""
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        return "playwright is not installed"
    return "" if executable() else f"there is no Chromium on the PATH, nor in ${VARIABLE}"


@contextmanager
def browser() -> Iterator[Any]:
    """A browser with a new, empty profile, until the end of the block."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=executable(), args=list(ARGUMENTS))
        try:
            yield found
        finally:
            found.close()


def axe() -> str:
    """The script of axe-core, which finds what keeps people from using a page."""
    import axe_playwright_python

    return (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text()
