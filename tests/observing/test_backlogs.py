"""Queries that fall behind, as the monitor's looks find and resolve them."""

from types import SimpleNamespace
from typing import Any

from spark_ext.incidents.reporter import Incidents
from spark_ext.model.execution import Cluster
from spark_ext.observing.monitor import EVERY, Backlogs
from spark_ext.queries.history import Figures
from spark_ext.spark.watching.query_events import SourceReport


class Watched:
    """A query that reads 1,000 rows between two looks, in five epochs of almost the whole time."""

    def __init__(self) -> None:
        self.uid, self.operator, self.live, self.committed = "q", "job 'j', query 'q'", True, 0
        self.watched = SimpleNamespace(paused=False)
        self.figures = Figures()

    def move(self, lag: int | None) -> None:
        self.committed += 5
        self.figures.input_rows += 1_000
        self.figures.recent.append((self.committed, round(0.19 * 1000 * EVERY)))
        self.figures.reported = {"in": SourceReport(lag, None, 1.0)}


class Looks:
    def __init__(self) -> None:
        self.now, self.run = 0.0, Watched()
        self.incidents = Incidents()
        self.backlogs = Backlogs(SimpleNamespace(write_behind=self))  # type: ignore[arg-type]

    def incident(self, operator: str, kind: str, what: str, action: str, evidence: Any, labels: Any) -> str:
        return self.incidents.report(operator, kind, what, action, evidence=evidence, labels=labels)

    def look(self, lags: range, busy: int = 2) -> list[Any]:
        for lag in lags:
            self.now += EVERY
            self.run.move(lag)
            self.backlogs.look([self.run], Cluster(1, 2, busy), self.now)  # type: ignore[list-item]
        return [one.incident for one in self.incidents.open("q")]


def test_a_query_falls_behind_and_catches_up() -> None:
    looks = Looks()
    (found,) = looks.look(range(0, 20_000, 800))
    assert found.type == "behind" and found.labels == {"type": "RESOURCE", "origin": "user"}
    assert "more than 60 s ago" in found.what and "all 2 slots are busy" in found.what
    last = looks.incidents.last()
    assert last is not None and last.count == 1
    assert [one.incident_id for one in looks.look(range(19_000, 18_000, -200))] == [found.incident_id]
    assert looks.look(range(18_000, 0, -1_000)) == []


def test_with_a_free_slot_or_after_its_end_it_does_not() -> None:
    assert Looks().look(range(0, 20_000, 800), busy=1) == []
    looks = Looks()
    assert looks.look(range(0, 20_000, 800))
    looks.run.live = False
    assert looks.look(range(20_000, 20_001)) == []
