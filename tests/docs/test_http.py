"""The page `docs/http_2pc.md` has the table of answers of the code."""

from __future__ import annotations

import re

from spark_ext.sinks.http_2pc.client import Verdict, verdict
from tests.support import pages


def test_each_status_means_what_the_table_says() -> None:
    rows = re.findall(r"^\| ([0-9][^|]*) \| ([^|]*) \|$", pages.read("http_2pc"), re.MULTILINE)
    assert len(rows) >= 5
    for statuses, meaning in rows:
        for status in map(int, re.findall(r"\b\d{3}\b", statuses)):
            said = verdict(status, "retry")
            if status == 409:
                continue
            expected = (
                Verdict.FENCED if "FENCED" in meaning else Verdict.REFUSED if "stops" in meaning else Verdict.AGAIN
            )
            assert said is expected, status
