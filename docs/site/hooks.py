"""Hooks of MkDocs: a file outside `docs` that a page links to becomes a page of the site, and the link leads there.

The pages stay as they are, so that they can be read in the repository too. A page links to `../examples/flights.py`,
and the site has a page with that file's text. What such a page links to is taken along as well.
"""

from __future__ import annotations

import json
import logging
import posixpath
import re
import sys
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any, Final

from mkdocs.structure.files import File, Files

ROOT: Final = Path(__file__).parents[2]
DOCS: Final = "docs"
LINK: Final = re.compile(r"(\]\()([^)\s]+)(\))")
FENCE: Final = re.compile(r"^([ ]*```.*?^[ ]*```[^\n]*$)", re.MULTILINE | re.DOTALL)
LANGUAGES: Final = {
    ".py": "python",
    ".yaml": "yaml",
    ".toml": "toml",
    ".json": "json",
    ".sh": "sh",
    ".tla": "text",
    ".cfg": "text",
}
"""Of files that are shown as text, by ending."""

SCRIPTS: Final = Path(sys.prefix) / "site-scripts"
"""Where `fetch_scripts` puts them."""

ELSEWHERE: Final = re.compile(
    r"<(?:script|img|iframe|link)\b[^>]*?\b(?:src|href)=[\"']?(?:https?:)?//[^>]*>(?:\s*</script>)?"
)
"""What would load something from another host."""

CANONICAL: Final = "canonical"
"""The relation of a link that loads nothing."""

log = logging.getLogger("mkdocs.hooks")

ALWAYS: Final = ("CONTRIBUTING.md", "CHANGELOG.md")
"""Part of the site though no page in `docs` may link to them."""

taken: dict[str, str] = {}
"""Files outside `docs` that are part of the site: path in the repository to path in the site."""


def on_files(files: Files, config: Any) -> Files:
    """Add pages for what pages link to, and the scripts that were fetched."""
    taken.clear()
    taken.update({path: place(path) for path in ALWAYS})
    waiting = [*ALWAYS, *(f"{DOCS}/{file.src_uri}" for file in files if file.is_documentation_page())]
    while waiting:
        page = waiting.pop()
        for link in links(page, as_page(page)):
            inside = link.startswith(f"{DOCS}/") and not link.startswith(f"{DOCS}/site/")
            if inside or link in taken or not (ROOT / link).is_file():
                continue
            taken[link] = place(link)
            if link.endswith((".md", ".ipynb")):
                waiting.append(link)
    for path, uri in taken.items():
        files.append(File.generated(config, uri, content=as_page(path)))
        if path.endswith(".ipynb"):
            own = posixpath.join(posixpath.dirname(uri), posixpath.basename(path))
            files.append(File.generated(config, own, abs_src_path=str(ROOT / path)))
    for script in SCRIPTS.glob("*.js"):
        files.append(File.generated(config, f"site/{script.name}", abs_src_path=str(script)))
        if script.name.startswith("mermaid"):
            config.extra_javascript.insert(0, f"site/{script.name}")
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Let links lead to where their files are in the site."""
    uri = page.file.src_uri
    path = next((path for path, its in taken.items() if its == uri), f"{DOCS}/{uri}")
    return outside_code(markdown, lambda text: LINK.sub(lambda found: _led(found, path, uri), text))


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Take out, or replace by a copy of ours, what a page would load from elsewhere."""
    own = posixpath.relpath("site/iframe-worker.js", posixpath.dirname(page.file.dest_uri) or ".")
    return nothing_from_elsewhere(output, own, page.file.dest_uri)


def on_post_template(output_content: str, template_name: str, config: Any) -> str:
    """The same for pages that are no page of ours, such as that for an address which does not exist."""
    return nothing_from_elsewhere(output_content, "/site/iframe-worker.js", template_name)


def nothing_from_elsewhere(html: str, shim: str, where: str) -> str:
    """A page that loads from its own site only; whatever else it would load is a warning.

    Args:
        html: of the page.
        shim: where our copy of what the search needs without a server is.
        where: name of the page, for the warning.
    """
    ours = f'<script src="{shim}"></script>' if (SCRIPTS / "iframe-worker.js").is_file() else ""

    def instead(found: re.Match[str]) -> str:
        if "iframe-worker" in found[0]:
            return ours
        if f'rel="{CANONICAL}"' not in found[0]:
            log.warning("%s would load something from elsewhere: %s", where, found[0])
        return found[0]

    return ELSEWHERE.sub(instead, html)


def place(path: str) -> str:
    """The path in the site of a file outside `docs`."""
    if path.endswith(".md"):
        return f"project/{path.lower()}"
    return f"notebooks/{Path(path).stem}.md" if path.endswith(".ipynb") else f"source/{path}.md"


def as_page(path: str) -> str:
    """The text of a page for a file outside `docs`."""
    text = (ROOT / path).read_text(encoding="utf-8")
    if path.endswith(".md"):
        return text
    if path.endswith(".ipynb"):
        return notebook(json.loads(text), path)
    language = LANGUAGES.get(Path(path).suffix, "text")
    return f"---\nsearch:\n  exclude: true\n---\n\n# {path}\n\n````{language}\n{text.rstrip()}\n````\n"


def notebook(found: dict[str, Any], path: str) -> str:
    """A notebook as Markdown, with its outputs."""
    parts: list[str] = []
    for cell in found["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"````python\n{source}\n````")
        parts += [shown for output in cell["outputs"] if (shown := _output(output))]
    title, *rest = parts
    note = f"This page is the notebook [{path}]({posixpath.basename(path)}), as it was run."
    return "\n\n".join([title, note, *rest]) + "\n"


def _output(output: dict[str, Any]) -> str:
    data = {kind: "".join(value) for kind, value in output.get("data", {}).items()}
    if "image/png" in data:
        content = f'<img alt="plot" src="data:image/png;base64,{data["image/png"].strip()}">'
    elif "text/html" in data:
        content = re.sub(r"<style.*?</style>|\n\s*", "", data["text/html"], flags=re.DOTALL)
    else:
        text = data.get("text/plain") or "".join(output.get("text", ""))
        content = f"<pre>{escape(text.rstrip())}</pre>"
    return f'<div class="output">{content}</div>'


def links(page: str, text: str) -> set[str]:
    """The files in the repository that a page links to, as paths from its root."""
    found: set[str] = set()

    def take(part: str) -> str:
        found.update(target for match in LINK.finditer(part) if (target := _target(page, match[2])))
        return part

    outside_code(text, take)
    return found


def outside_code(text: str, change: Callable[[str], str]) -> str:
    """A text with whatever is not in a block of code changed."""
    parts = FENCE.split(text)
    return "".join(part if number % 2 else change(part) for number, part in enumerate(parts))


def _target(page: str, link: str) -> str:
    """The file in the repository that a link leads to; "" for one to another site or within the page."""
    path = link.partition("#")[0]
    if not path or ":" in path or path.startswith("/"):
        return ""
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), path))


def _led(found: re.Match[str], path: str, uri: str) -> str:
    target = _target(path, found[2])
    if not target:
        return found[0]
    in_site = taken.get(target) or (target.removeprefix(f"{DOCS}/") if target.startswith(f"{DOCS}/") else "")
    if not in_site:
        return found[0]
    _, mark, anchor = found[2].partition("#")
    # Of a file that is shown as code there are no anchors.
    anchor = mark + anchor if in_site.endswith(".md") and not in_site.startswith("source/") else ""
    return f"{found[1]}{posixpath.relpath(in_site, posixpath.dirname(uri) or '.')}{anchor}{found[3]}"
