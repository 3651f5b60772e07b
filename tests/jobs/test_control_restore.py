"""Control events over histories with savepoints: what stands is in force again, what was done is not done again."""

from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

import spark_ext as sx
from spark_ext.control import stamps
from spark_ext.control.epoch_configuration import epoch_configuration
from spark_ext.control.log import ControlLog
from spark_ext.jobs.job import Job
from spark_ext.ledger import Ledger
from spark_ext.ledger.schema import ControlEventRow, ControlTransitionRow
from spark_ext.model.query_offsets import source_offsets
from spark_ext.spark.logs.spark_log import SparkLog
from tests.control.states import Sent
from tests.support.jobs import JobHarness, expected, numbers
from tests.support.waiting import until

COUNTS = (40, 40)


class Restored:
    """A job whose rows say which value of the key `a` they saw."""

    def __init__(self, lab: JobHarness) -> None:
        self.lab = lab
        self.gate = lab.folder / "gate"

    def job(self, name: str = "lab", out: str = "out") -> Job:
        options = {"counts": ",".join(map(str, COUNTS)), "max_rows_per_epoch": 10, "gate": self.gate}
        rows = numbers(self.lab.spark, "in", **options).withColumn("a", sx.control.value("a", "bigint"))
        made = sx.Job(self.lab.spark, name, state=self.lab.folder / name)
        writer = rows.writeStream.format("delta_2pc").option("uid", "out").option("path", str(self.lab.folder / out))
        return made.add("q", writer)

    def send(self, name: str, kind: str, value: Any = None, target: str = "job") -> int:
        return Sent(self.lab.folder / name)(kind, value, target)

    def outcome(self, name: str, sequence: int) -> str:
        rows = Ledger(str(self.lab.folder / name)).table(ControlTransitionRow).rows([("sequence", "=", sequence)])
        return next((row.status for row in rows if not row.query and row.status != "applied"), "")

    def acknowledged(self, name: str, sequence: int) -> None:
        until(lambda: self.outcome(name, sequence) == "acknowledged", f"event {sequence} in force")

    def rows(self, out: str = "out") -> list[tuple[str, int]]:
        found = DeltaTable(str(self.lab.folder / out)).to_pyarrow_table(columns=["channel", "n"]).to_pylist()
        return sorted((row["channel"], row["n"]) for row in found)

    def values(self, out: str = "out") -> set[Any]:
        return set(DeltaTable(str(self.lab.folder / out)).to_pyarrow_table(columns=["a"])["a"].to_pylist())

    def configurations(self) -> list[dict[str, Any]]:
        """What was in force in the epochs up to the newest one, repetitions left out."""
        stamps.read.cache_clear()
        ledger = Ledger(str(self.lab.folder / "lab"))
        newest = SparkLog(str(self.lab.folder / "lab/queries/q/checkpoint")).newest_commit()
        assert newest is not None
        found = [epoch_configuration(ledger, "q", epoch) for epoch in range(newest + 1)]
        values = [dict(one.configuration.user("q")) for one in found if one is not None]
        return [one for one, before in zip(values, [None, *values], strict=False) if one != before]

    def newest(self, name: str) -> int:
        checkpoint = str(self.lab.folder / name / "queries/q/checkpoint")
        log = SparkLog(checkpoint)
        logged = log.offsets(log.newest_offsets() or 0)
        assert logged is not None
        return stamps.configuration(checkpoint, source_offsets(logged).values()).sequence


@pytest.fixture
def restored(lab: JobHarness) -> Restored:
    return Restored(lab)


@pytest.mark.slow(25, "runs a job four times, with two restores")
def test_a_restore_in_place_and_one_as_another_job(restored: Restored) -> None:
    place: Path = restored.lab.folder / "savepoint"
    job = restored.job().start()
    until(lambda: job.snapshot().query("q").rows > 0, "it has begun")
    for value in ({"key": "b", "value": 1}, {"key": "b", "unset": True}):
        restored.acknowledged("lab", restored.send("lab", "set_config", value))
    one = restored.send("lab", "set_config", {"key": "a", "value": 1})
    restored.acknowledged("lab", one)
    job.stop(savepoint=place)
    begun = restored.rows()

    job = restored.job().start()
    two = restored.send("lab", "set_config", {"key": "a", "value": 2})
    restored.acknowledged("lab", two)
    jump = restored.send("lab", "seek", {"position": 0, "yes": True}, "source:in/0")
    until(lambda: restored.outcome("lab", jump) != "", "what came of the seek")
    job.stop()
    late = restored.send("lab", "broadcast", {"type": "note"})

    restored.job().restore(place)
    assert restored.rows() == begun
    assert restored.configurations() == [{}, {"b": 1}, {}, {"a": 1}], "of epochs before the cut, too"
    restored.gate.touch()
    assert restored.job().run(progress=False).finished
    assert restored.rows() == expected(*COUNTS), "no seek, and no rows of the abandoned history"
    assert restored.values() == {None, 2} or restored.values() == {None, 1, 2}
    assert restored.newest("lab") == two, "the configuration is the newest one"
    assert restored.outcome("lab", late) == "failed", "it was sent to the history that the restore has abandoned"
    # Another job begins with the configuration of the savepoint, and its own events come behind it.
    other = restored.job("other", "other-out")
    other.restore(place)
    ledger = Ledger(str(restored.lab.folder / "other"))
    assert ControlLog(ledger).configuration().user("q") == {"a": 1}, "the driver has it, too"
    assert ledger.newest_control_sequence() > one and not ledger.open_control_events()
    assert other.run(progress=False).finished
    checkpoint = str(restored.lab.folder / "other" / "queries/q/checkpoint")
    logged = SparkLog(checkpoint).offsets(SparkLog(checkpoint).newest_offsets() or 0)
    assert logged is not None
    assert stamps.configuration(checkpoint, source_offsets(logged).values()).user("q") == {"a": 1}
    assert pc.max(DeltaTable(str(restored.lab.folder / "other-out")).to_pyarrow_table(columns=["a"])["a"]).as_py() == 1
    accepted = ledger.table(ControlEventRow).rows([("status", "=", "accepted")])
    assert [(it.kind, it.value, it.origin) for it in accepted] == [("set_config", {"key": "a", "value": 1}, "restore")]
