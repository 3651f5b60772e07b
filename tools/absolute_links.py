"""Links of a Markdown text that work outside the repository: on a package index's page, in release notes."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

_LINK = re.compile(r"(?P<image>!?)(?P<text>\[(?:[^\[\]]|\[[^\]]*\])*\])\((?P<target>[^()\s]+)\)")
_PICTURES = {".png", ".svg", ".jpg", ".gif"}


def absolute(text: str, source: str, version: str, folder: str = "") -> str:
    """The text with each relative link replaced by the address of that file in the tagged version.

    Args:
        text: Markdown; links in its code blocks are left alone.
        source: address of the repository.
        version: of the package, without the `v` of its tag.
        folder: of the text's file in the repository; "" for its root.
    """
    parts = re.split(r"^(```.*?^```[^\n]*$)", text, flags=re.DOTALL | re.MULTILINE)
    parts[::2] = [_LINK.sub(lambda found: _replaced(found, source.rstrip("/"), version, folder), p) for p in parts[::2]]
    return "".join(parts)


def _replaced(found: re.Match[str], source: str, version: str, folder: str) -> str:
    target = found["target"]
    if re.match(r"[a-z][a-z+.-]*:|#|//", target):
        return found[0]
    path, mark, anchor = target.partition("#")
    place = _normal(PurePosixPath(folder) / path)
    kind = "raw" if found["image"] or place.suffix in _PICTURES else "blob"
    return f"{found['image']}{found['text']}({source}/{kind}/v{version}/{place}{mark}{anchor})"


def _normal(path: PurePosixPath) -> PurePosixPath:
    parts: list[str] = []
    for part in path.parts:
        if part == "..":
            parts.pop()
        else:
            parts.append(part)
    return PurePosixPath(*parts)
