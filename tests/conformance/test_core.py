"""Every run of `make test` shows each behaviour of `docs/conformance.md`, whichever slice is on."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conformance.test_table import ROWS, SHOWN, listed

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def core(request: pytest.FixtureRequest) -> set[tuple[str, str]]:
    files = set(re.findall(r"`(tests/[\w/]+\.py)::", SHOWN))
    items = request.session.items
    if not request.config.option.keyword and files <= {item.nodeid.partition("::")[0] for item in items}:
        return _names("\n".join(item.nodeid for item in items if item.get_closest_marker("core")))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:xdist", "-m", "core", *sorted(files)],
        cwd=ROOT, env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return _names(done.stdout)


def _names(collected: str) -> set[tuple[str, str]]:
    return set(re.findall(r"^(tests/[\w/]+\.py)::(?:\w+::)?(\w+)", collected, re.MULTILINE))


@pytest.mark.slow(12, "alone, it collects the tests of the page in a process of its own")
def test_each_line_is_shown_by_the_core(core: set[tuple[str, str]]) -> None:
    names = {name for _, name in core}
    for line, cell in ROWS.items():
        # A test of the contract kit is collected where a connector takes its suite over.
        shown = [
            name in names if path.startswith("spark_ext/testing/") else (path, name) in core
            for path, name in listed(cell)
        ]
        assert any(shown), f"no test of {line} is in the core"
