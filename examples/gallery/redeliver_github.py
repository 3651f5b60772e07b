"""Deliver again what a webhook of GitHub could not deliver: GitHub itself tries each delivery once.

Run it every few minutes, by cron or in an Action. It asks GitHub what was delivered in the last three days, which is as
long as GitHub keeps it, and requests another attempt of each event that has not been accepted yet. An event that was
accepted meanwhile keeps its id, so the job drops the second one.

    GITHUB_TOKEN=... python examples/gallery/redeliver_github.py repos/OWNER/REPO/hooks/ID

A webhook of an organization is `orgs/ORG/hooks/ID`. The token needs the permission to write webhooks.
"""

from __future__ import annotations

import json
import os
import re
import sys
import urllib.request
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

API = os.environ.get("GITHUB_API", "https://api.github.com")
KEPT = timedelta(days=3)
UNDER_WAY = timedelta(minutes=1)
HOPELESS = {400, 413, 415, 422}
"""Answers that another attempt would get as well: the request itself is refused."""


def ask(url: str, method: str = "GET") -> tuple[Any, str]:
    """The answer of GitHub, and the address of the next page."""
    headers = {"Accept": "application/vnd.github+json", "Authorization": f"Bearer {os.environ['GITHUB_TOKEN']}"}
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers, method=method), timeout=30) as answer:
        following = re.search(r'<([^>]+)>; rel="next"', answer.headers.get("Link", ""))
        return json.loads(answer.read() or b"null"), following[1] if following else ""


def deliveries(hook: str, since: datetime) -> Iterator[dict[str, Any]]:
    """Newest first."""
    url = f"{API}/{hook}/deliveries?per_page=100"
    while url:
        page, url = ask(url)
        for one in page:
            if datetime.fromisoformat(one["delivered_at"].replace("Z", "+00:00")) < since:
                return
            yield one


def redeliver(hook: str) -> list[str]:
    """Request another attempt of each event whose newest one has failed, and which none has delivered; their ids."""
    now = datetime.now(timezone.utc)
    attempts: dict[str, list[dict[str, Any]]] = {}
    for one in deliveries(hook, now - KEPT):
        attempts.setdefault(one["guid"], []).append(one)
    asked = []
    for guid, (newest, *older) in attempts.items():
        delivered = any(200 <= one["status_code"] < 300 for one in (newest, *older))
        at = datetime.fromisoformat(newest["delivered_at"].replace("Z", "+00:00"))
        if not delivered and newest["status_code"] not in HOPELESS and now - at > UNDER_WAY:
            ask(f"{API}/{hook}/deliveries/{newest['id']}/attempts", "POST")
            asked.append(guid)
    return asked


def main() -> None:
    if "GITHUB_TOKEN" not in os.environ or len(sys.argv) != 2:
        raise SystemExit("set GITHUB_TOKEN, and name the webhook: see the first lines of this file")
    asked = redeliver(sys.argv[1].strip("/"))
    print(f"requested again: {len(asked)}", *asked)


if __name__ == "__main__":
    main()
