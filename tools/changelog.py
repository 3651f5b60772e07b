"""Release notes: what CHANGELOG.md says of one version."""

from __future__ import annotations

import re

UNRELEASED = "Unreleased"


def section(changelog: str, version: str) -> tuple[str, str]:
    """The entries of a version, without its heading; those of the next version if it has none of its own.

    Args:
        changelog: in the format of Keep a Changelog.
        version: such as `0.2.0`.

    Returns:
        The heading that they are under, and the text.

    Raises:
        ValueError: there is neither.
    """
    found: dict[str, str] = {}
    for part in re.split(r"^## ", changelog, flags=re.MULTILINE)[1:]:
        heading, _, text = part.partition("\n")
        found.setdefault(heading.strip().strip("[]").split("]")[0].split()[0], text.strip() + "\n")
    for name in (version, UNRELEASED):
        if found.get(name, "").strip():
            return name, found[name]
    raise ValueError(f"CHANGELOG.md has no entries for {version}, and none that are unreleased")
