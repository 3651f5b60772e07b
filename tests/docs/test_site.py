"""The site of the documentation: it is complete, builds without a warning, and loads nothing from elsewhere."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


class Loader(yaml.SafeLoader):
    """Reads `mkdocs.yml` without the functions that it names."""


Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: suffix)


def pages_of(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    else:
        for part in nav.values() if isinstance(nav, dict) else nav:
            yield from pages_of(part)


CONFIG = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), Loader)  # a safe loader
REFERENCE = "\n".join(path.read_text(encoding="utf-8") for path in (DOCS / "api").glob("*.md"))
SHOWN = set(re.findall(r"^::: ([\w.]+)$", REFERENCE, re.MULTILINE))


def test_each_page_is_in_the_navigation_once() -> None:
    found = list(pages_of(CONFIG["nav"]))
    assert len(found) == len(set(found))
    # Decisions are reached from their list.
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md") if path.parent.name != "decisions"}
    assert pages <= set(found)


@pytest.mark.parametrize("module", ["spark_ext", "spark_ext.control", "spark_ext.failures", "spark_ext.listeners"])
def test_each_public_name_is_in_the_reference(module: str) -> None:
    names = import_module(module).__all__
    assert {
        f"{module}.{name}" for name in names if not isinstance(getattr(import_module(module), name), ModuleType)
    } <= SHOWN


@pytest.mark.parametrize("name", ["spark_ext.sources.contract", "spark_ext.sinks.contract", "spark_ext.errors"])
def test_each_public_module_is_in_the_reference(name: str) -> None:
    assert name in SHOWN


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    pytest.importorskip("mkdocs")
    spec = spec_from_file_location("site_hooks", DOCS / "site" / "hooks.py")
    assert spec is not None and spec.loader is not None
    found = module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def test_links_are_found_outside_of_code_only(hooks: ModuleType) -> None:
    text = (
        "[a](b.md#c) [d](../examples/e.py)\n\n```sh\n[f](g.md)\n```\n\n[h](https://i.example) [j](#k) ![l](m/n.png)\n"
    )
    assert hooks.links("docs/x.md", text) == {"docs/b.md", "examples/e.py", "docs/m/n.png"}


def test_what_a_page_would_load_from_elsewhere_is_a_warning(
    hooks: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    own = '<script src="../a.js"></script><a href="https://b.example">b</a><link rel="canonical" href="https://c.example">'
    assert hooks.nothing_from_elsewhere(own, "s.js", "page") == own and not caplog.records
    hooks.nothing_from_elsewhere('<img alt="x" src="//d.example/e.png">', "s.js", "page")
    assert "d.example" in caplog.text
    shim = '<script src="https://cdn.example/iframe-worker/shim"></script>'
    assert "cdn.example" not in hooks.nothing_from_elsewhere(shim, "s.js", "page")


@pytest.fixture(scope="module")
def site(hooks: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)], cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.slow(15, "builds the site")
def test_no_link_anchor_or_name_leads_nowhere(site: Path) -> None:
    """`--strict` refuses them; what it makes is there."""
    assert (site / "index.html").is_file() and (site / "search" / "search_index.json").is_file()
    assert 'id="spark_ext.Job.run"' in (site / "api" / "jobs.html").read_text(encoding="utf-8")
    notebook = (site / "notebooks" / "first_job.html").read_text(encoding="utf-8")
    assert 'src="data:image/png;base64,' in notebook and ">FINISHED<" in notebook


def test_no_page_loads_anything_from_elsewhere(site: Path, hooks: ModuleType) -> None:
    found = {
        match[0]
        for path in site.rglob("*.html")
        for match in hooks.ELSEWHERE.finditer(path.read_text(encoding="utf-8"))
    }
    assert not found
    styles = "\n".join(path.read_text(encoding="utf-8") for path in site.rglob("*.css"))
    assert not re.findall(r"url\([\"']?(?:https?:)?//[^)]*\)", styles)
