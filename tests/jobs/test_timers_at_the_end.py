"""Timers that are left when the input of a query has ended: which of them fire, and what is said of the others."""

import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

import spark_ext as sx
from spark_ext.incidents.types import query_in
from spark_ext.ledger.schema import IncidentRow
from tests.support import validators
from tests.support.jobs import JobHarness


class Chain(StatefulProcessor):
    """Each timer sets the next one, an hour later, until there were so many; in processing time at once."""

    def __init__(self, generations: int, wait_ms: int = 0) -> None:
        self._generations, self._wait_ms = generations, wait_ms

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._fired = handle.getValueState("fired", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        for _ in rows:
            pass
        now = int(time.time() * 1000)
        self._handle.registerTimer(now + self._wait_ms if self._wait_ms else 3_600_000)
        self._fired.update((0,))
        yield from ()

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
        import pandas as pd

        fired = (self._fired.get() or (0,))[0] + 1
        if fired < self._generations:
            self._fired.update((fired,))
            self._handle.registerTimer(expiredTimerInfo.getExpiryTimeInMs() + 3_600_000)
        else:
            self._fired.clear()
        yield pd.DataFrame({"n": [fired]})

    def close(self) -> None: ...


@pytest.mark.slow(60, "starts four queries with timers")
@pytest.mark.without_validators(
    validators.no_state_left,
    validators.finished_means_committed,
    reason="some timers are dropped; for those in processing time Spark plans epochs until it is stopped",
)
def test_f12_chains_of_timers_fire_and_the_rest_is_said(lab: JobHarness) -> None:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    made = sx.Job(lab.spark, "timers", state=lab.folder / "state", finalization_timeout="12 s")

    def add(query: str, chain: Chain, mode: str, **timers: Any) -> None:
        rows = sx.with_watermark(lab.source(f"{query}-in", counts="3"), "ts", "1 hour", **timers)
        frame = rows.groupBy("channel").transformWithStateInPandas(chain, "n bigint", "Append", mode)
        lab.add(made, frame, query=query, out=query)

    add("chain", Chain(4), "EventTime")
    add("endless", Chain(10_000), "EventTime")
    add("waits", Chain(1, 6_000), "ProcessingTime", processing_timers="fire")
    add("drops", Chain(1, 3_600_000), "ProcessingTime")
    result = made.run(progress=False)
    assert result.finished
    fired = {name: sorted(row["n"] for row in lab.rows(name)) for name in ("chain", "endless", "waits", "drops")}
    assert fired["chain"] == [1, 2, 3, 4]
    assert len(fired["endless"]) > 4 and fired["endless"] == list(range(1, len(fired["endless"]) + 1))
    assert (fired["waits"], fired["drops"]) == ([1], [])
    left = {query.uid for query in result.queries if query.state_rows}
    assert left == {"endless", "drops"}
    found = lab.ledger.table(IncidentRow).rows([("type", "=", "state_left")])
    assert {query_in(row.operator) for row in found} == left
    assert str(result).count("left in its state") == 2
