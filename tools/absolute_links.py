"""Links of a Markdown text that work outside the repository: on a package index's page, in release notes."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

_CODE_OR_LINK = re.compile(r"^```.*?^```[^\n]*$|`[^`\n]+`|\]\((?P<target>[^()\s]+)\)", re.DOTALL | re.MULTILINE)
_PICTURES = {".png", ".svg", ".jpg", ".gif"}


def absolute(text: str, source: str, version: str, folder: str = "") -> str:
    """The text with each relative link replaced by the address of that file in the tagged version.

    Args:
        text: Markdown; what is written as code is left alone.
        source: address of the repository.
        version: of the package, without the `v` of its tag.
        folder: of the text's file in the repository; "" for its root.
    """

    def replaced(found: re.Match[str]) -> str:
        target = found["target"]
        if target is None or re.match(r"[a-z][a-z+.-]*:|#|//", target):
            return found[0]
        path, mark, anchor = target.partition("#")
        place = _normal(PurePosixPath(folder) / path)
        kind = "raw" if place.suffix in _PICTURES else "blob"
        return f"]({source.rstrip('/')}/{kind}/v{version}/{place}{mark}{anchor})"

    return _CODE_OR_LINK.sub(replaced, text)


def _normal(path: PurePosixPath) -> PurePosixPath:
    parts: list[str] = []
    for part in path.parts:
        if part == "..":
            parts.pop()
        else:
            parts.append(part)
    return PurePosixPath(*parts)
