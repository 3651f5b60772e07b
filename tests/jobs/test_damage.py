"""A job whose state is damaged, and that restores itself from its newest retained checkpoint."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import spark_ext as sx
from spark_ext.control.log import ControlLog
from spark_ext.control.requests import Accepted, Request
from spark_ext.errors import ConfigurationError, JobFailedError, StateError
from spark_ext.jobs.checkpointing.retained import complete
from spark_ext.jobs.composition import ChangeDeclarations
from spark_ext.jobs.job import Job
from spark_ext.jobs.restoring.restore import remedy
from spark_ext.jobs.starting.recorded_past import check_past, compared
from spark_ext.ledger import Ledger
from spark_ext.ledger.memory import JobMemory
from spark_ext.ledger.schema import ControlEventRow, IncidentRow
from spark_ext.model.configuration import Configuration
from tests.control.states import State
from tests.support.jobs import register
from tests.support.refusals import refused
from tests.support.saved import ALL, Chain
from tests.support.waiting import until


def damage(state: Path) -> None:
    """Other files in the place of those of a query's state; checkpoints have links to the old ones."""
    place = state / "queries" / "unique" / "checkpoint" / "state"
    files = [file for file in place.rglob("*") if file.is_file() and "metadata" not in str(file)]
    assert files
    for file in files:
        file.unlink()
        if not file.name.endswith(".crc"):
            file.write_bytes(b"of a bad disk")


def make(chain: Chain, **settings: Any) -> Job:
    return chain.job(retained_checkpoints=2, checkpoint_interval="100 ms", **settings)


@pytest.mark.slow(20, "four starts of a job of two queries, and a restore")
def test_it_is_restored_once_for_each_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    register(spark)
    chain = Chain(spark, tmp_path)
    (tmp_path / "release").touch()
    state = tmp_path / "state"
    job = make(chain).start()
    until(lambda: len(chain.written()) >= 60 and len(complete(str(state))) > 1, "a checkpoint of the first 60 rows", 60)
    job.stop()
    newest = complete(str(state))[-1]
    damage(state)
    ledger = Ledger(str(state))
    before = chain.written()
    gate = tmp_path / "gate"
    gate.touch()

    with pytest.raises(JobFailedError, match="state"):
        make(chain).run(progress=False)
    assert not [row for row in ledger.jobs() if row.event == "restored"]
    assert remedy(str(state), ledger) == (newest, "")
    (failed,) = ledger.table(IncidentRow).rows([("type", "=", "failure")])
    assert failed.labels["type"] == "STATE"
    # It comes back at once, and is damaged again before it has completed another checkpoint.
    job = chain.job(retained_checkpoints=2, checkpoint_interval="1 hour", on_damage="restore")
    job.restore(newest)
    damage(state)
    with pytest.raises(JobFailedError, match=f"it has been restored from checkpoint {newest}, and has completed none"):
        job.run(progress=False)
    assert set(chain.written()) <= set(before)

    gate.unlink()
    job = make(chain, on_damage="restore").restore(newest).start()
    job.checkpoint(60)
    until(lambda: complete(str(state))[-1] > newest, "a checkpoint of the restored job", 60)
    job.stop()
    newest = complete(str(state))[-1]
    damage(state)
    gate.touch()
    result = chain.job(retained_checkpoints=2, checkpoint_interval="1 hour", on_damage="restore").run(progress=False)
    assert result.finished and chain.written() == ALL
    last = [row for row in ledger.jobs() if row.event == "restored"][-1]
    assert last.savepoint is not None and Path(last.savepoint).name == str(newest)


def test_what_it_needs_is_refused_when_the_job_is_made(spark: SparkSession, tmp_path: Path) -> None:
    with refused(ConfigurationError, "on_damage", "set retained_checkpoints to 1 or more"):
        sx.Job(spark, "x", state=tmp_path / "state", on_damage="restore")
    with refused(ConfigurationError, "on_damage='restore' needs a state directory on a file system"):
        sx.Job(spark, "x", state="s3://bucket/state", on_damage="restore", retained_checkpoints=1)


@pytest.mark.parametrize("obeyed_by", ["an epoch that is planned", "the driver"])
def test_a_start_without_an_event_that_was_obeyed_is_refused(tmp_path: Path, obeyed_by: str) -> None:
    state = State(tmp_path / "state")
    table, copy = Path(state.ledger.folder) / ControlEventRow.table, tmp_path / "copy"
    shutil.copytree(table, copy)
    (accepted,) = ControlLog(state.ledger).accept([Request("pause")])
    assert isinstance(accepted, Accepted)
    if obeyed_by == "the driver":
        state.step(accepted.event, "acknowledged")
    else:
        state.epoch("q", 0, Configuration().after([accepted.event]))
    declared = ChangeDeclarations(removed=frozenset({"q"}))
    memory = JobMemory.read(state.ledger)
    check_past(compared("orders", memory, state.ledger, [], declared, state.incarnation, ()))
    shutil.rmtree(table)
    copy.rename(table)
    with pytest.raises(StateError, match="relies on control event 1, and the newest one in the ledger is 0") as caught:
        compared("orders", memory, state.ledger, [], declared, state.incarnation, ())
    assert "'control_events'" in caught.value.operator
