"""Makes the pictures of the page in the documentation: `python -m tests.support.page_images docs/images`."""

import sys
import tempfile
from pathlib import Path

from spark_ext.server.server import ControlServer
from tests.support import browser
from tests.support.page_states import shop

VIEWS = ("overview", "timeline")  # each becomes `page-<view>.png`


def main(folder: Path) -> None:
    with (
        tempfile.TemporaryDirectory() as place,
        browser.browser() as chromium,
        ControlServer(shop(Path(place) / "state")) as server,
    ):
        page = chromium.new_context(viewport={"width": 1280, "height": 800}).new_page()
        page.goto(server.url)
        page.fill("#token", server.token or "")
        page.click("button.primary")
        page.wait_for_selector("nav a[aria-current]")
        for view in VIEWS:
            page.evaluate("view => location.hash = '#/' + view", view)
            page.wait_for_timeout(1_000)  # what is asked for is there, and drawn
            page.screenshot(path=str(folder / f"page-{view}.png"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
