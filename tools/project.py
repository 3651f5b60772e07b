"""What pyproject.toml says of the project."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]


def toml(file: Path) -> dict[str, Any]:
    """What a file in TOML says."""
    table: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))
    return table


def project(root: Path = ROOT) -> dict[str, Any]:
    """The table `[project]`."""
    table: dict[str, Any] = toml(root / "pyproject.toml")["project"]
    return table
