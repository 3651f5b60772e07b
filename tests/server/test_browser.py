"""The page in a real browser: what it shows, that hostile names stay text, the keyboard, and what axe-core finds."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spark_ext.ledger import Ledger, LedgerWriter, start_incarnation
from spark_ext.ledger.heartbeat import Heartbeat
from spark_ext.ledger.identity import OBSERVER
from spark_ext.ledger.incarnation import forget
from spark_ext.ledger.schema import ControlEventRow
from spark_ext.server.assets import report
from spark_ext.server.server import ControlServer
from spark_ext.server.tokens import create
from spark_ext.views.page.epochs import UNKNOWN, series
from spark_ext.views.page.facts import FactsReader
from tests.control.states import State
from tests.ledger.rows import incident
from tests.ledger.rows import state as state_row
from tests.server.served import client
from tests.support import browser
from tests.support.page_states import HOSTILE, shop

pytestmark = pytest.mark.skipif(bool(browser.missing()), reason=browser.missing())

VIEWS = ("overview", "graph", "timeline", "epochs", "channels", "incidents", "query/price", "incidents/4c1f02aa3")
SIZES = {"light": (1280, 800, "light"), "dark": (1280, 800, "dark"), "phone": (360, 740, "light")}


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser.browser() as found:
        yield found


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> str:
    return shop(tmp_path_factory.mktemp("browser") / "state", what=HOSTILE)


@pytest.fixture(scope="module")
def server(state: str) -> Iterator[ControlServer]:
    with ControlServer(state) as found:
        yield found


@pytest.fixture
def page(chromium: Any) -> Iterator[Any]:
    """A page that may have no error in its console."""
    context = chromium.new_context(viewport={"width": 1280, "height": 800})
    made = context.new_page()
    problems: list[str] = []
    made.on("pageerror", lambda problem: problems.append(str(problem)))
    made.on("console", lambda said: problems.append(said.text) if said.type == "error" else None)
    yield made
    context.close()
    assert problems == []


@contextmanager
def serving(page: Any, state: str) -> Iterator[ControlServer]:
    """A server that the page leaves first: a stream that is cut off would be an error in its console."""
    with ControlServer(state) as found:
        yield found
        page.goto("about:blank")


def enter(page: Any, server: ControlServer, token: str | None = None) -> None:
    page.goto(server.url)
    log_in(page, token or server.token or "")


def log_in(page: Any, token: str) -> None:
    page.fill("#token", token)
    page.click("button.primary")
    page.wait_for_selector("nav a[aria-current]")


@pytest.fixture
def job_report(state: str, tmp_path: Path) -> str:
    file = tmp_path / "job.html"
    file.write_text(report(FactsReader(Ledger(state)).read(), datetime.now(timezone.utc)))
    return file.as_uri()


def show(page: Any, view: str) -> None:
    page.evaluate("view => location.hash = '#/' + view", view)
    page.wait_for_function("view => document.querySelector('main h1') && location.hash.endsWith(view)", arg=view)


def test_the_queries_their_states_and_an_incident_with_its_stack(page: Any, server: ControlServer) -> None:
    enter(page, server)
    row = page.locator("tr", has=page.get_by_role("link", name="price", exact=True))
    assert "FAILED" in row.inner_text() and "382" in row.inner_text()
    assert page.locator("table.virtual tbody tr[data-id]").count() == 7
    page.get_by_role("link", name="Incidents").click()
    page.get_by_role("searchbox").fill("type=USER_CODE")
    page.locator("table.virtual a").first.click()
    page.wait_for_selector("pre.stack")
    assert "KeyError: 'CHF'" in page.locator("pre.stack").inner_text()
    page.get_by_role("link", name="Graph").click()
    page.get_by_role("link", name="price: FAILED").wait_for()
    assert page.locator(".exchange").count() == 3


@pytest.mark.parametrize(
    ("epochs", "said"),
    [
        ([(2_000, 2_000, 1_000_000)], "1,000,000 rows in 2.0 s: 500K rows/s on average, 500K rows/s in the best of 2"),
        ([(100, 100, 1_000)], "1,000 rows in 100 ms: 10K rows/s on average."),
        (
            [(second * 1_000, 400, 300) for second in range(1, 61)],
            "18,000 rows in 59.4 s: 303 rows/s on average, 303 rows/s in the best of 59 periods.",
        ),
        ([(1_000, UNKNOWN, 5)], "5 rows in 1 ms: 5,000 rows/s on average."),
        ([], "No epoch has been committed."),
    ],
    ids=["one", "short", "paced", "unknown", "none"],
)
def test_rows_per_second_are_those_of_the_time_that_epochs_took(
    page: Any, server: ControlServer, epochs: list[tuple[int, int, int]], said: str
) -> None:
    columns = zip(*epochs, strict=True) if epochs else ([],) * 3
    at, ms, rows = (np.array(list(column), np.int64) for column in columns)
    page.goto(server.url)
    script = "one => import('/page/plots.js').then((plots) => plots.rates(one).said)"
    assert page.evaluate(script, series(at, rows, ms, 240).to_json()).startswith(said)


@pytest.mark.parametrize("name", ["constructor", "__proto__", "toString"])
def test_a_query_that_is_not_there_has_no_page_whatever_its_name(page: Any, server: ControlServer, name: str) -> None:
    enter(page, server)
    show(page, f"query/{name}")
    assert "The job has no such query." in page.locator("main").inner_text()


def test_how_far_queries_are_behind_with_the_age_of_the_figure(page: Any, server: ControlServer) -> None:
    from playwright.sync_api import expect  # it waits until the page is there

    enter(page, server)
    row = page.locator("tr", has=page.get_by_role("link", name="alerts", exact=True))
    for words in ("1,203, ", " ago"):
        expect(row).to_contain_text(words)
    expect(page.locator(".figures")).to_contain_text("42.4K")
    show(page, "query/alerts")
    for words in ("1,203 rows, ", "Lag of alerts-rates", " behind"):
        expect(page.locator("dl.facts")).to_contain_text(words)
    show(page, "query/load-orders")
    plot = page.get_by_role("region", name="Lag", exact=True)
    expect(plot.locator(".said")).to_contain_text("41,200 rows still to be read")
    expect(plot.locator("polyline.line")).to_have_count(1)
    show(page, "query/daily")
    page.wait_for_selector("section[aria-label='Rows per second'] svg")
    assert not page.locator("section[aria-label='Lag']").is_visible()


def test_what_happens_is_shown_without_loading_again(page: Any, server: ControlServer, state: str) -> None:
    enter(page, server)
    page.evaluate("window.same = true")
    before = int(page.locator(".count").inner_text())
    Ledger(state).table(type(incident(1))).append([incident(900 + before)])
    page.wait_for_function("count => document.querySelector('.count').textContent === String(count)", arg=before + 1)
    assert page.evaluate("window.same") is True


def test_it_connects_again_when_the_server_was_away(chromium: Any, state: str, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.json"
    token = create(tokens, "viewer", ["read"])
    context = chromium.new_context()
    page = context.new_page()
    with ControlServer(state, tokens=tokens) as first:
        port = int(first.url.rpartition(":")[2])
        enter(page, first, token)
        page.wait_for_selector(".connection.live")
        assert page.get_by_role("button", name="Pause").count() == 0  # a token that may only read
    page.wait_for_selector(".connection.waiting")
    with ControlServer(state, tokens=tokens, port=port):
        page.wait_for_selector(".connection.live")
    context.close()


def test_a_button_sends_an_event_and_says_what_became_of_it(page: Any, server: ControlServer, state: str) -> None:
    enter(page, server)
    page.get_by_role("button", name="Pause").click()
    page.wait_for_function("() => document.querySelector('.answer').textContent.includes('accepted')")
    assert [row.kind for row in Ledger(state).table(ControlEventRow).rows()] == ["pause"]
    page.get_by_role("button", name="Stop …").click()
    dialog = page.get_by_role("dialog")
    assert "stops where it is" in dialog.inner_text()
    page.keyboard.press("Escape")
    assert dialog.count() == 0 and page.evaluate("document.activeElement.textContent") == "Stop …"
    assert len(Ledger(state).table(ControlEventRow).rows()) == 1
    show(page, "query/load-orders")
    page.get_by_label("Rows per second of source load-orders-orders").fill("500")
    page.get_by_role("button", name="Limit").click()
    page.wait_for_function("() => document.querySelector('.answer').textContent !== ''")


def test_a_wrong_token_is_refused_and_a_right_one_in_no_address(chromium: Any, server: ControlServer) -> None:
    context = chromium.new_context()
    page = context.new_page()
    addresses: list[str] = []
    page.on("request", lambda request: addresses.append(request.url))
    page.goto(server.url)
    page.fill("#token", "sxt_wrong")
    page.click("button.primary")
    page.wait_for_selector("[role=alert]:not([hidden])")
    page.check("#keep")
    log_in(page, server.token or "")
    page.reload()
    page.wait_for_selector("nav a[aria-current]")
    assert server.token and not any(server.token in one for one in [*addresses, page.url])
    assert all(one.startswith(server.url) for one in addresses)
    assert page.evaluate("localStorage.length") == 0
    page.get_by_role("button", name="Leave").click()
    assert page.evaluate("sessionStorage.length") == 0
    context.close()


def test_what_an_observer_watches_has_no_buttons(page: Any, tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path / "state"))
    incarnation = start_incarnation(ledger, "nightly", kind=OBSERVER)  # this process stands for it, and runs
    LedgerWriter(ledger, incarnation).append(state_row("RUNNING", "prices", datetime.now(timezone.utc)))
    with serving(page, ledger.uri) as server:
        enter(page, server)
        page.get_by_role("link", name="prices", exact=True).wait_for()
        assert page.get_by_role("button", name="Pause").count() == 0
        body = {"kind": "pause", "target": "job"}
        answer = client(server, server.token).post("/v1/jobs/nightly/control", json=body)
    assert (answer.status_code, answer.json()["reason"]) == (409, "observed")
    forget(ledger.uri, incarnation.number)


def test_a_silent_driver_is_not_taken_for_a_running_one(page: Any, tmp_path: Path) -> None:
    made = State(tmp_path / "state")
    heartbeat = Heartbeat(made.path, made.incarnation)
    at = datetime.now(timezone.utc) - timedelta(minutes=5)
    heartbeat.beat(at)
    with serving(page, made.path) as server:
        enter(page, server)
        assert f"No heartbeat since {at:%Y-%m-%d %H:%M:%S} UTC" in page.locator(".trouble pre").inner_text()
        heartbeat.beat()
        page.locator(".trouble pre").wait_for(state="detached")


@pytest.mark.core
def test_hostile_names_stay_text_on_the_page_and_in_a_report(page: Any, server: ControlServer, job_report: str) -> None:
    page.goto(job_report)
    page.wait_for_selector("nav a[aria-current]")
    for live in (False, True):
        if live:
            enter(page, server)
        for view in VIEWS:
            show(page, view)
        page.wait_for_selector("pre.stack")
        assert HOSTILE in page.locator("pre.what").inner_text()
        assert page.locator("img").count() == 0 and "hacked" not in page.title()


def test_a_report_needs_no_server_and_has_all_views(page: Any, job_report: str) -> None:
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.goto(job_report)
    page.wait_for_selector("nav a[aria-current]")
    for view in VIEWS:
        show(page, view)
    assert page.locator("pre.stack").count() == 1
    assert all(one.startswith(("file:", "data:")) for one in requests)
    assert page.get_by_role("button", name="Pause").count() == 0


@pytest.mark.slow(15, "axe-core looks at each of eight views")
@pytest.mark.parametrize("size", SIZES)
def test_axe_finds_nothing_serious_and_every_view_fits(chromium: Any, server: ControlServer, size: str) -> None:
    width, height, scheme = SIZES[size]
    context = chromium.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, bypass_csp=True, reduced_motion="reduce"
    )
    page = context.new_page()
    page.goto(server.url)
    page.add_script_tag(content=browser.axe())
    found = [("login", *problem) for problem in serious(page)]
    log_in(page, server.token or "")
    for view in VIEWS:
        show(page, view)
        page.wait_for_timeout(150)  # what is asked for is there
        page.evaluate("document.querySelectorAll('main details').forEach(one => { one.open = true; })")
        # A scheme changes colours and nothing else, a window everything but them.
        chosen = {"light": None, "dark": True, "phone": False}[size]
        found += [(view, *problem) for problem in serious(page, colours=chosen)]
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), view
    context.close()
    assert found == []


def serious(page: Any, *, colours: bool | None = None) -> list[tuple[str, str]]:
    """Rules that are broken, each with the first element; `colours`: only the rule of the colours, or all others."""
    options: dict[str, Any] = {"resultTypes": ["violations"]}
    if colours:
        options["runOnly"] = ["color-contrast"]
    elif colours is False:
        options["rules"] = {"color-contrast": {"enabled": False}}
    result = page.evaluate("options => axe.run(document, options)", options)
    grave = [one for one in result["violations"] if one["impact"] in ("serious", "critical")]
    return [(one["id"], one["nodes"][0]["html"][:200]) for one in grave]


def test_everything_is_reached_and_done_with_the_keyboard(page: Any, server: ControlServer) -> None:
    page.goto(server.url)
    page.wait_for_function("() => document.activeElement.id === 'token'")
    page.keyboard.type(server.token or "")
    page.keyboard.press("Enter")
    page.wait_for_selector("nav a[aria-current]")
    assert page.evaluate("document.activeElement.textContent") == "Overview"
    for _ in range(12):
        page.keyboard.press("Shift+Tab")
        if page.evaluate("document.activeElement.className") == "skip":
            break
    assert page.evaluate("document.activeElement.getBoundingClientRect().top") >= 0
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "content"
    reached = []
    for _ in range(30):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.textContent || document.activeElement.ariaLabel || ''"))
        if reached[-1] == "price":
            break
    assert {"Pause", "Stop …", "Filter the queries", "Query", "price"} <= set(reached)
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("End")
    last = page.evaluate("document.activeElement.textContent")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.textContent") == last != "price"
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    page.wait_for_function("() => location.hash === '#/query/price'")
    assert page.evaluate("document.activeElement.textContent") == "price"
    show(page, "timeline")
    page.focus(".timeline")
    page.keyboard.press("+")
    page.keyboard.press("0")


def test_a_table_of_many_rows_has_only_those_that_can_be_seen(page: Any, tmp_path: Path) -> None:
    from benchmarks.page import made

    with serving(page, made(tmp_path / "state", queries=500, epochs=2_000)) as server:
        enter(page, server)
        table = page.locator("table.virtual")
        assert table.get_attribute("aria-rowcount") == "501"
        assert table.locator("tbody tr[data-id]").count() < 60
        table.locator("tbody a[tabindex='0']").focus()
        page.keyboard.press("End")
        assert page.evaluate("document.activeElement.closest('tr').ariaRowIndex") == "501"
        box = page.evaluate(
            "() => { const row = document.activeElement.getBoundingClientRect();"
            "const frame = document.querySelector('.scroll').getBoundingClientRect();"
            "return row.top >= frame.top && row.bottom <= frame.bottom + 1; }"
        )
        assert box and table.locator("tbody tr[data-id]").count() < 60
