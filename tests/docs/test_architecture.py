"""The picture of the layers in docs/architecture.md shows the layers that import-linter holds."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PICTURE = (ROOT / "docs" / "architecture.md").read_text().split("## The layers")[1].split("```")[1]
LISTED = re.search(r"^layers = \[(.*?)^\]", (ROOT / "pyproject.toml").read_text(), re.MULTILINE | re.DOTALL)


def floors() -> dict[str, int]:
    """Each package or module of the contract with its floor, from the top."""
    assert LISTED is not None
    lines = re.findall(r'"([^"]+)"', LISTED[1])
    return {name.strip(" ()"): floor for floor, line in enumerate(lines) for name in line.split("|")}


def rooms() -> dict[str, list[str]]:
    """Node of the picture to the packages named in the first line of its label."""
    found = re.findall(r'(\w+)\["([^"<]+)', PICTURE)
    return {node: [name.strip() for name in label.split("·")] for node, label in found}


def test_every_layer_is_in_the_picture() -> None:
    drawn = {re.sub(r"<.*", "", name) for names in rooms().values() for name in names}
    assert drawn == floors().keys() - {"conf", "settings"}


def test_every_arrow_points_down() -> None:
    arrows = re.findall(r'^\s*(\w+)(?:\["[^"]*"\])? --> (.+)$', PICTURE, re.MULTILINE)
    assert len(arrows) > 15
    for node, targets in arrows:
        for target in re.sub(r'\["[^"]*"\]', "", targets).split("&"):
            below, above = rooms()[target.strip()], rooms()[node]
            assert max(floors()[name] for name in above) < min(floors()[name] for name in below), (node, target)


def test_every_file_that_the_page_names_exists() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    folders = ("spark_ext", "sources", "sinks", "listeners", "tests")
    there = [f"/{path.relative_to(ROOT)}" for folder in folders for path in (ROOT / folder).rglob("*.py")]
    named = set(re.findall(r"`([\w/]+\.py)`", page))
    assert len(named) > 100
    assert [name for name in named if not any(path.endswith(f"/{name}") for path in there)] == []
