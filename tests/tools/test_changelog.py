"""Release notes are what the changelog says of one version."""

import pytest

from tools.changelog import section
from tools.project import ROOT

CHANGELOG = """# Changelog

## Unreleased

{unreleased}
## [0.2.0] - 2026-01-02

### Fixed

- B

## 0.1.0 - 2026-01-01

- A
"""


@pytest.mark.parametrize(("version", "text"), [("0.2.0", "### Fixed\n\n- B\n"), ("0.1.0", "- A\n")])
def test_the_section_of_a_version(version: str, text: str) -> None:
    assert section(CHANGELOG.format(unreleased="- C\n"), version) == (version, text)


def test_a_version_without_a_section_has_what_is_unreleased() -> None:
    assert section(CHANGELOG.format(unreleased="- C\n"), "0.3.0") == ("Unreleased", "- C\n")
    with pytest.raises(ValueError, match=r"no entries for 0\.3\.0"):
        section(CHANGELOG.format(unreleased=""), "0.3.0")


def test_the_changelog_of_this_project_can_be_read() -> None:
    assert "### Jobs" in section((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), "9999")[1]
