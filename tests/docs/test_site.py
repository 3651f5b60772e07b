"""The site of the documentation: it is complete, builds without a warning, and loads nothing from elsewhere.

Its search, in a browser, finds the page for the words that a user types.
"""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from tests.support import browser

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


SEARCHES = {
    "csv": "how-to/copy-csv-files",
    "skip header": "how-to/copy-csv-files",
    "incremental load": "how-to/copy-csv-files",
    "delimiter": "how-to/copy-csv-files",
    "scd1": "how-to/postgres-to-delta",
    "postgres to delta": "how-to/postgres-to-delta",
    "upsert": "how-to/postgres-to-delta",
    "merge": "how-to/from-plain-spark",
    "kafka to postgres": "how-to/kafka-to-postgres",
    "avro schema registry": "kafka_range",
    "webhook": "how-to/webhook-to-table",
    "stripe": "push",
    "github webhook": "how-to/webhook-to-table",
    "custom source": "how-to/custom-source",
    "rest api source": "how-to/custom-source",
    "backfill": "how-to/backfill-then-live",
    "bootstrap history": "how-to/backfill-then-live",
    "last window missing": "how-to/windows-to-the-end",
    "late data": "how-to/windows-to-the-end",
    "watermark": "end-of-input",
    "cron": "how-to/schedule",
    "airflow": "how-to/schedule",
    "systemd timer": "how-to/schedule",
    "run every hour": "hourly",
    "slack": "how-to/alerts",
    "mail alert": "how-to/alerts",
    "teams notification": "how-to/alerts",
    "pause": "how-to/change-a-running-job",
    "drain": "how-to/change-a-running-job",
    "rate limit": "control",
    "schema change": "how-to/change-a-job",
    "add a column": "how-to/change-a-job",
    "rename query": "how-to/change-a-job",
    "savepoint": "how-to/savepoint-and-restore",
    "rollback": "how-to/savepoint-and-restore",
    "unit test": "how-to/test-a-job",
    "pytest": "how-to/test-a-job",
    "foreachBatch": "how-to/from-plain-spark",
    "availableNow": "how-to/from-plain-spark",
    "exactly once": "exactly-once",
    "deduplicate": "how-to/kafka-to-postgres",
    "dead letter": "how-to/dead-letter",
    "quarantine": "how-to/dead-letter",
    "exit codes": "cli",
    "s3": "object-stores",
    "kubernetes": "kubernetes",
    "databricks": "databricks",
    "flink": "beside-others",
    "prometheus": "metrics",
    "docker": "kubernetes",
    "running totals": "how-to/windows-to-the-end",
    "early results": "how-to/windows-to-the-end",
    "slowly changing dimension": "how-to/postgres-to-delta",
    "slack webhook": "how-to/alerts",
    "dead letter table": "how-to/dead-letter",
    "custom sink": "write-a-sink",
    "which sink": "sinks",
    "runbook": "runbooks",
    "stalls": "slow-and-stuck",
    "heap dump": "slow-and-stuck",
    "downtime": "operations",
    "openapi": "control-reference",
}
"""Words that a user types, and a page that has to be among the first three results."""

SEARCH = """
async searches => {
  const worker = new Worker(JSON.parse(document.getElementById("__config").textContent).search);
  const asked = message => new Promise(resolve => {
    worker.onmessage = event => resolve(event.data);
    worker.postMessage(message);
  });
  const index = await (await fetch("search/search_index.json")).json();
  await asked({type: 0, data: {...index, options: {suggest: true}}});
  const found = {};
  for (const words of searches)
    found[words] = (await asked({type: 2, data: words})).data.items.map(([page]) => page.location);
  return found;
}
"""
"""Asks the theme's own search, in its worker: the address of each page that is found, the best first."""


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


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None: ...


@pytest.mark.skipif(bool(browser.missing()), reason=browser.missing())
def test_the_search_finds_the_page(site: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with browser.browser() as chromium:
            page = chromium.new_page()
            page.goto(f"http://127.0.0.1:{server.server_port}/index.html")
            found = page.evaluate(SEARCH, list(SEARCHES))
        server.shutdown()
    first = {words: [address.partition(".html")[0] for address in found[words][:3]] for words in SEARCHES}
    assert {words: first[words] for words, wanted in SEARCHES.items() if wanted not in first[words]} == {}
