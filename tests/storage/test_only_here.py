"""Files are replaced, linked and synced in the room for files alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMES = {"fsync", "fdatasync", "hardlink_to", "rename", "renames"}


def found_in(text: str) -> Iterator[int]:
    """The lines with a call that belongs into the room; `replace` of a text or a time has other arguments."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name, module = node.func.attr, node.func.value
            of_os = isinstance(module, ast.Name) and module.id == "os" and name in ("link", "replace")
            of_path = name == "replace" and len(node.args) == 1 and not node.keywords
            if name in NAMES or of_os or of_path:
                yield node.lineno


def test_no_module_replaces_links_or_syncs_files_by_itself() -> None:
    files = [
        file for folder in ("spark_ext", "sources", "sinks", "listeners") for file in (ROOT / folder).rglob("*.py")
    ]
    assert len(files) > 500
    room = ROOT / "spark_ext" / "storage"
    found = [f"{file}:{line}" for file in files if room not in file.parents for line in found_in(file.read_text())]
    assert found == []


@pytest.mark.parametrize(
    "call", ["os.replace(a, b)", "os.link(a, b)", "os.fsync(1)", "a.replace(b)", "a.rename(b)", "a.hardlink_to(b)"]
)
def test_each_such_call_is_found(call: str) -> None:
    assert list(found_in(f"x = 1\n{call}")) == [2]
    assert list(found_in('text.replace("a", "b")\nat.replace(tzinfo=None)\nfolder.link(a, b)')) == []
