"""The files of the page: what the bundle of a report relies on, and what no file may do."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ext.server import assets
from tests.support.page_states import HOSTILE

SCRIPTS = sorted(name for name in assets.names() if name.endswith(".js"))
TEXTS = {name: assets.asset(name).decode() for name in sorted(assets.names())}


class Elements(HTMLParser):
    """The elements of a page with their attributes, and what is in scripts and styles."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self.texts.append("")

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] in ("script", "style") and self.texts:
            self.texts[-1] += data

    def handle_endtag(self, tag: str) -> None:
        self.tags.append((f"/{tag}", {}))


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_nothing_is_loaded_from_elsewhere_or_becomes_markup(name: str) -> None:
    text = TEXTS[name]
    urls = set(re.findall(r"\bhttps?://[^\s\"'`)]+", text)) - {"http://www.w3.org/2000/svg"}
    assert not urls
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "srcdoc",
                 "localStorage", "document.cookie"):  # fmt: skip
        assert word not in text, word


def test_the_page_has_no_script_or_style_of_its_own() -> None:
    page = Elements(TEXTS[assets.INDEX])
    assert all(not text.strip() for text in page.texts)
    assert not [name for _, attributes in page.tags for name in attributes if name == "style" or name.startswith("on")]


@pytest.mark.parametrize("name", SCRIPTS)
def test_each_module_has_the_form_that_the_bundle_understands(name: str) -> None:
    for line in TEXTS[name].splitlines():
        if line.startswith("import"):
            found = re.fullmatch(r'import \{ [\w, ]+ \} from "\./([a-z_]+\.js)";', line)
            assert found and found[1] in SCRIPTS, line
        if line.startswith("export"):
            assert re.match(r"export (async )?(function\*?|const|class) \w+", line), line


def test_each_module_is_in_the_bundle_once_before_its_users() -> None:
    made = re.findall(r"^const module_(\w+) = ", assets.bundle(), re.MULTILINE)
    assert sorted(f"{name}.js" for name in made) == SCRIPTS
    for name in SCRIPTS:
        for other in re.findall(r'from "\./([a-z_]+)\.js"', TEXTS[name]):
            assert made.index(other) < made.index(name.removesuffix(".js"))
    assert not re.search(r"^(import|export) ", assets.bundle(), re.MULTILINE)


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(JSON)
def test_what_is_embedded_ends_no_element_and_is_what_it_was(value: Any) -> None:
    text = assets.embedded(value)
    assert not set("<>&") & set(text) and text.isascii()
    assert json.loads(text) == value


def test_a_report_is_one_file_with_the_data_in_it() -> None:
    documents = {"page": {"name": HOSTILE}, "incidents": {"<!--<script>": "\u2028 &amp; ]]>"}}
    page = Elements(assets.standalone(documents))
    tags = [tag for tag, _ in page.tags]
    assert tags.count("script") == 2 and "img" not in tags and tags.count("style") == 1
    assert not [a for _, a in page.tags if "src" in a or str(a.get("href", "")).startswith(("http", "page", "/"))]
    style, script, data = page.texts
    assert json.loads(data) == documents and "<" not in data
    (policy,) = [a["content"] for tag, a in page.tags if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None and "default-src 'none'" in policy and "unsafe" not in policy
    for kind, content in (("style", style), ("script", script)):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
