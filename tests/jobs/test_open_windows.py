"""What a run leaves open in the states of its queries is said where a user looks, or is unknown; nothing is made up."""

from datetime import datetime, timezone

import pytest
from deltalake import DeltaTable

import spark_ext as sx
from spark_ext.ledger import Ledger
from spark_ext.views.page.document import page
from spark_ext.views.page.facts import FactsReader
from spark_ext.views.status import read_status
from tests.jobs.test_late_rows import arrive, run
from tests.support.jobs import JobHarness
from tests.test_cli import spark_ext

COUNTING = "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows"


def recorded(lab: JobHarness) -> int | None:
    """What the status and the page say, which is the same."""
    state = str(lab.folder / "state")
    status = read_status(state).query("q").state_rows
    document = page(FactsReader(Ledger(state)).read(), datetime.now(timezone.utc))
    assert document["queries"][0]["state_rows"] == document["job"]["state_rows"] == status
    assert read_status(state).to_json()["queries"][0]["state_rows"] == status
    return status


@pytest.mark.core
def test_open_windows_are_counted_or_unknown(lab: JobHarness) -> None:
    arrive(lab, "first", "08:10", "09:10", "12:10", "12:20", "13:10")
    first = run(lab)
    table = DeltaTable(lab.folder / "out").to_pyarrow_table().to_pylist()
    assert {row["hour"] for row in table} == {8, 9}
    assert first.query("q").state_rows == recorded(lab) == len({8, 9, 12, 13}) - len(table) == 2
    said = "2 rows in its state for the next run, such as open windows, which until='now' with emit='all' ends"
    assert said in str(first) and f"q: {said}" in spark_ext("status", lab.folder / "state").stdout
    again = run(lab)
    assert again.query("q").state_rows == (2 if again.epochs else None) and recorded(lab) == 2, "nothing was read"
    arrive(lab, "second", "14:05")
    lab.spark.conf.set(COUNTING, "false")
    try:
        unknown = run(lab)
    finally:
        lab.spark.conf.unset(COUNTING)
    assert unknown.query("q").state_rows is None and recorded(lab) is None and "in its state" not in str(unknown)
    ended = run(lab, emit="all")
    assert ended.finished and not ended.query("q").state_rows and recorded(lab) == 0


def test_a_run_does_not_advise_to_end_what_has_only_to_remember(lab: JobHarness) -> None:
    arrive(lab, "first", "08:10", "09:10")
    reader = lab.spark.readStream.format("files").schema("at timestamp")
    rows = (
        reader.options(uid="in", path=str(lab.folder / "in"), format="json", watch="true").load().dropDuplicates(["at"])
    )
    job = sx.Job(lab.spark, "distinct", state=lab.folder / "state")
    job.add("q", rows.writeStream.format("delta_2pc").options(uid="out", path=str(lab.folder / "out")))
    result = job.run(until="now", progress=False)
    for said in (str(result), spark_ext("status", lab.folder / "state").stdout):
        assert "2 rows in its state for the next run" in said and "emit=" not in said
