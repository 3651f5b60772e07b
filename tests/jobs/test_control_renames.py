"""Control events over histories with renamed queries: what stands for a query follows it, and stays with no other."""

from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import functions as F

import spark_ext as sx
from spark_ext.control.epoch_configuration import epoch_configuration
from spark_ext.control.log import ControlLog
from spark_ext.control.requests import ControlRefused, Refusal, Request
from spark_ext.errors import JobFailedError
from spark_ext.failpoints import FailPoint
from spark_ext.jobs.job import Job
from spark_ext.jobs.renamed_targets import addressed_to_nobody
from spark_ext.ledger import Ledger
from spark_ext.ledger.schema import ControlTransitionRow
from spark_ext.model.configuration import Configuration
from spark_ext.spark.logs.spark_log import SparkLog
from tests.control.states import Sent
from tests.support.jobs import JobHarness, numbers
from tests.support.refusals import broken
from tests.support.waiting import until

COUNT = 60


class Renamed:
    """A job whose rows say which value of the keys `a` and `b` they saw, under a uid that changes."""

    def __init__(self, lab: JobHarness) -> None:
        self.lab = lab
        self.ledger = Ledger(str(lab.folder / "state"))
        self.gate = lab.folder / "gate"

    def add(self, job: Job, uid: str, source: str, out: str, *, fail_at: int = -1, **given: Any) -> Job:
        options = {"counts": COUNT, "max_rows_per_epoch": 10, "gate": self.gate, "fail_at": fail_at}
        frame = numbers(self.lab.spark, source, **options)

        def build(config: Any) -> Any:
            rows = frame.withColumns({"a": sx.control.value("a", "bigint"), "b": F.lit(config.get("b", 0))})
            return rows.writeStream.format("delta_2pc").option("uid", out).option("path", str(self.lab.folder / out))

        return job.add(uid, build, **given)

    def job(self) -> Job:
        return sx.Job(self.lab.spark, "lab", state=self.lab.folder / "state", restart_attempts=0)

    def send(self, kind: str, value: Any, target: str) -> int:
        return Sent(self.lab.folder / "state")(kind, value, target)

    def outcome(self, sequence: int) -> str:
        rows = self.ledger.table(ControlTransitionRow).rows([("sequence", "=", sequence)])
        return next((row.status for row in rows if not row.query and row.status != "applied"), "")

    def seen(self, out: str = "out") -> list[tuple[int, int | None, int]]:
        found = DeltaTable(str(self.lab.folder / out)).to_pyarrow_table(columns=["n", "a", "b"])
        return sorted((row["n"], row["a"], row["b"]) for row in found.to_pylist())


@pytest.fixture
def renamed(lab: JobHarness) -> Renamed:
    return Renamed(lab)


@pytest.mark.slow(20, "runs a job three times")
def test_what_stands_for_a_query_follows_its_uid(renamed: Renamed) -> None:
    job = renamed.add(renamed.job(), "q", "in", "out", fail_at=15).start()
    until(lambda: job.snapshot().query("q").rows, "the first rows")
    first = [renamed.send("set_config", {"key": key, "value": 7}, "query:q") for key in "ab"]
    until(lambda: all(renamed.outcome(one) for one in first), "both are in force")
    renamed.gate.touch()
    with pytest.raises(JobFailedError, match="row 15 cannot be read"):
        job.await_termination()
    open_epoch = SparkLog(str(renamed.lab.checkpoint("q"))).newest_offsets()
    late = [renamed.send("set_config", {"key": key, "value": 8}, "query:q") for key in "ab"]
    note = renamed.send("broadcast", {"type": "note"}, "query:q")
    # The rename is recorded, and the start ends before its control event is.
    broken(FailPoint.QUERY_RENAMED, renamed.add(renamed.job(), "p", "in", "out", renamed_from="q").start)
    assert renamed.add(renamed.job(), "p", "in", "out", renamed_from="q").run(progress=False).finished
    seen = renamed.seen()
    assert [n for n, _, _ in seen] == list(range(COUNT))
    assert {(a, b) for n, a, b in seen if 10 <= n < 20} == {(7, 7)}, "the epoch that was open is the one it was"
    assert {(a, b) for n, a, b in seen if n >= 20} == {(8, 8)}
    assert [renamed.outcome(one) for one in late] == ["acknowledged"] * 2
    assert renamed.outcome(note) == "rejected", "a request for something that is gone is not done by another"
    replayed = epoch_configuration(renamed.ledger, "p", open_epoch)
    assert replayed is not None and replayed.configuration.user("p") == {"a": 7, "b": 7}
    for target, why in {"query:q": Refusal.UNKNOWN_TARGET, "query:p": Refusal.ENDED}.items():
        (refused,) = ControlLog(renamed.ledger).accept([Request("set_config", target, {"key": "a", "value": 9})])
        assert isinstance(refused, ControlRefused) and refused.refusal is why
    assert ControlLog(renamed.ledger).configuration().user("q") == {}
    # Another query takes the former uid: nothing of the first one is in force for it.
    job = renamed.add(renamed.add(renamed.job(), "p", "in", "out", renamed_from="q"), "q", "in2", "out2")
    assert job.run(progress=False).finished
    assert {(a, b) for _, a, b in renamed.seen("out2")} == {(None, 0)}
    assert len(renamed.seen()) == COUNT


def test_what_stands_for_nothing_in_the_job_is_said() -> None:
    targets = ("job", "query:q", "query:r", "source:s/c", "source:t", "sink:k")
    found = Configuration(1, {"pause": {target: {"": None} for target in targets}})
    assert addressed_to_nobody(found, ["q"], ["s"]) == ("query:r", "source:t")
