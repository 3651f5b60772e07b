"""What a driver says of its queries with a heartbeat."""

from __future__ import annotations

import json

from spark_ext.queries.history import Figures, vitals
from spark_ext.spark.watching.query_events import SourceReport


def test_each_query_says_what_is_known_of_it() -> None:
    both = {"in": SourceReport(7, 0, 12.5), "other": SourceReport(None, 3, 12.5)}
    found = vitals(
        [
            ("quiet", Figures()),
            ("half", Figures(reported=both, watermark="1970-01-01T00:00:00.000Z")),
            ("whole", Figures(reported={"in": both["in"]}, noted=lambda: {"in": SourceReport(9, None, 20.0)})),
            ("timed", Figures(watermark="2026-01-01T00:00:00.000Z", newest_row="2026-01-01T00:00:10.000Z")),
        ]
    )
    assert found == {
        "half": {"lag": {"in": [7, 12_500]}, "complete": False},
        "whole": {"lag": {"in": [9, 20_000]}, "complete": True},
        "timed": {"watermark": 1_767_225_600_000, "newest_row": 1_767_225_610_000},
    }
    assert json.loads(json.dumps(found)) == found
