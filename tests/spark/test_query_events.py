"""Reports of Spark, reduced to hints."""

from __future__ import annotations

import json

from spark_ext.spark.watching.query_events import hints_of


def text(epoch: int, **durations: int) -> str:
    return json.dumps(
        {
            "id": "i",
            "runId": "r",
            "batchId": epoch,
            "numInputRows": 3,
            "durationMs": durations,
            "sources": [],
            "stateOperators": [
                {"numRowsTotal": 5, "numRowsDroppedByWatermark": 2},
                {"numRowsTotal": 1, "numRowsDroppedByWatermark": 1},
            ],
        }
    )


def test_a_trigger_that_had_nothing_to_do_is_no_epoch() -> None:
    found = hints_of([text(7, addBatch=5, triggerExecution=9), text(8, latestOffset=1, triggerExecution=1)])
    assert [(hint.epoch, hint.input_rows, hint.duration_ms) for hint in found] == [(7, 3, 9)]
    assert [(hint.state_rows, hint.late_rows) for hint in found] == [(6, 3)]
