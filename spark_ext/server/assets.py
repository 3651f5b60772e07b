"""The files of the web page, and the same in one file. Needs no FastAPI.

The page loads nothing from elsewhere, and runs no script but its own: a strict Content-Security-Policy says so to the
browser. What the page shows is text that anybody may have written: names, messages, stacks.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from spark_ext.views.page.document import page
from spark_ext.views.page.history import whole
from spark_ext.views.page.incidents import detail

if TYPE_CHECKING:
    from spark_ext.views.page.facts import Facts

TYPES: Final[Mapping[str, str]] = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}

INDEX: Final = "index.html"  # the page itself; the other files are below `/page/`
MAIN: Final = "main.js"  # the module that imports the others
COMMON: Final = "base-uri 'none'; form-action 'none'; object-src 'none'; require-trusted-types-for 'script'"

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    f"frame-ancestors 'none'; {COMMON}"
)
"""The Content-Security-Policy of the served page."""

HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
}
"""Of all files of the page."""

_IMPORT: Final = re.compile(r'^import \{([^}]*)\} from "\./([a-z_]+\.js)";\n', re.MULTILINE)
_EXPORT: Final = re.compile(r"^export (?:async )?(?:function\*? |const |class )(\w+)", re.MULTILINE)
_SCRIPT: Final = '<script type="module" src="page/main.js"></script>'
_STYLE: Final = '<link rel="stylesheet" href="page/style.css">'
_ICON: Final = '<link rel="icon" href="page/icon.svg">'


@cache
def asset(name: str) -> bytes:
    """A file of the page."""
    if name not in names():
        raise FileNotFoundError(name)
    return files("spark_ext.server").joinpath("page").joinpath(name).read_bytes()


@cache
def names() -> frozenset[str]:
    """The files of the page."""
    folder = files("spark_ext.server").joinpath("page")
    return frozenset(one.name for one in folder.iterdir() if one.name.rpartition(".")[2] in TYPES)


@cache
def paths() -> frozenset[str]:
    """The paths under which a server has them."""
    return frozenset({"/", *(f"/page/{name}" for name in names() if name != INDEX)})


def content_type(name: str) -> str:
    """The media type of a file, by its name."""
    return TYPES[name.rpartition(".")[2]]


def standalone(documents: Mapping[str, Any]) -> str:
    """The page as one file, which needs no server and loads nothing."""
    script, style = bundle(), asset("style.css").decode()
    policy = f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data:; {COMMON}"
    icon = base64.b64encode(asset("icon.svg")).decode()
    page = asset(INDEX).decode()
    for old, new in {
        _STYLE: f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<style>{style}</style>',
        _ICON: f'<link rel="icon" href="data:image/svg+xml;base64,{icon}">',
        # A script of the type module runs when all of the page is there, the data behind it included.
        _SCRIPT: f'<script type="module">{script}</script>\n'
        f'<script type="application/json" id="data">{embedded(documents)}</script>',
    }.items():
        if page.count(old) != 1:
            raise AssertionError(f"{INDEX} has to have {old} once")
        page = page.replace(old, new)
    return page


def embedded(value: Any) -> str:
    """JSON that can stand in a script element: it has no `<`, `>` or `&`, so nothing in it ends the element."""
    text = json.dumps(value, separators=(",", ":"))  # ASCII only, so that no line separator of Unicode is in it
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def bundle() -> str:
    """All modules as one: each is a function, which is called before those that import from it."""
    ordered: dict[str, str] = {}

    def add(name: str) -> None:
        text = asset(name).decode()
        for _, other in _IMPORT.findall(text):
            if other not in ordered:
                add(other)
        ordered[name] = _as_function(name, text)

    add(MAIN)
    return "\n" + "\n".join(ordered.values()) + "\n"


def _as_function(name: str, text: str) -> str:
    exported = ", ".join(_EXPORT.findall(text))
    body = _IMPORT.sub(lambda found: f"const {{{found[1].replace(' as ', ': ')}}} = {_variable(found[2])};\n", text)
    body = re.sub(r"^export ", "", body, flags=re.MULTILINE)
    return f"const {_variable(name)} = (() => {{\n{body}\nreturn {{ {exported} }};\n}})();"


def _variable(name: str) -> str:
    return f"module_{name.removesuffix('.js')}"


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


POINTS: Final = 40_000  # points of all series together: a file is loaded once, and nothing more can be asked for
DETAILS: Final = 200  # maximum number of incidents, the newest ones, that are included with their evidence


def documents(facts: Facts, now: datetime) -> dict[str, Any]:
    """What the file contains: the document, and the evidence of incidents by id."""
    newest = whole(facts.incidents, facts.changes)[-DETAILS:]
    return {
        "page": page(facts, now, POINTS),
        "incidents": {row["incident_id"]: detail(row, facts.changes) for row in newest},
    }


def report(facts: Facts, now: datetime) -> str:
    """The HTML of a job's report."""
    return standalone(documents(facts, now))
