"""Histories in which a restore in place meets more than the job that was saved: exact, or refused by name."""

import shutil
from typing import Any

import pytest

import spark_ext as sx
from spark_ext.errors import SparkExtError, StateError
from spark_ext.failpoints import FailPoint
from spark_ext.jobs.job import Job
from spark_ext.ledger import start_incarnation
from spark_ext.model.lifecycle import State
from spark_ext.sinks.files_2pc.sink import read
from tests.support.jobs import JobHarness, expected, numbers
from tests.support.refusals import broken, delta_numbers, refused
from tests.support.saved import ALL, Chain
from tests.support.waiting import until


def table(lab: JobHarness, frame: Any, uid: str) -> Any:
    return frame.writeStream.format("delta_2pc").option("uid", f"{uid}-out").option("path", str(lab.folder / uid))


def written(lab: JobHarness, *uids: str) -> list[int]:
    return [len(delta_numbers(lab.folder / uid)) for uid in uids]


def test_another_savepoint_after_an_interrupted_restore(chain: Chain) -> None:
    """The interrupted one has rolled the table back, of which Spark's log knows nothing."""
    at_the_end, job = chain.folder / "at-the-end", chain.job()
    job.savepoint(at_the_end)
    broken(FailPoint.RESTORE_ROLLED_BACK, lambda: job.restore(chain.savepoint))
    assert len(chain.written()) < len(ALL)
    job.restore(at_the_end)
    assert chain.written() == ALL
    assert chain.job().run(progress=False).rows == 0


@pytest.mark.slow(30, "runs a job of three queries twice")
def test_queries_that_were_built_later_left_out_or_added_again(lab: JobHarness) -> None:
    gate = lab.folder / "gate"

    def job(*, second: bool = True, renamed: bool = False) -> Job:
        made = sx.Job(lab.spark, "lab", state=lab.folder / "state")
        options = {"counts": "30,30", "max_rows_per_epoch": 20, "gate": gate}
        made.add("first", table(lab, numbers(lab.spark, "first-in", **options), "first"))
        made.add("late", lambda: table(lab, numbers(lab.spark, "late-in", counts="7"), "late"), after="first")
        if second:
            rows = table(lab, numbers(lab.spark, "second-in", **options), "second")
            made.add("third" if renamed else "second", rows, renamed_from="second" if renamed else None)
        return made

    place = lab.folder / "savepoint"
    made = job().start()
    until(lambda: min(query.rows for query in made.snapshot().queries) > 0, "both have begun")
    made.savepoint(place)
    begun = written(lab, "first", "second")
    gate.touch()
    assert made.await_termination(300).finished
    assert written(lab, "first", "second", "late") == [60, 60, 7]

    with refused(StateError, "query 'second' is in the savepoint"):
        job(second=False).restore(place)
    job(second=False).remove("second").restore(place)
    assert written(lab, "first", "second", "late") == [begun[0], 60, 0], "a query that is built later is put back, too"
    for again in (job(), job(renamed=True)):
        with pytest.raises(SparkExtError, match=r"query 'second' was left out when the job was restored.*"):
            again.start()
    at = lab.folder / "without-second"
    job(second=False).savepoint(at)
    job().restore(at)
    with pytest.raises(StateError, match="query 'second' was left out"):
        job().start()

    job().restore(place)
    assert written(lab, "first", "second", "late") == [*begun, 0]
    assert job().run(progress=False).finished
    for uid, rows in (("first", expected(30, 30)), ("second", expected(30, 30)), ("late", expected(7))):
        assert delta_numbers(lab.folder / uid) == rows
    with refused(StateError, "query 'second' came after the savepoint and is not in the job", "job.remove('second')"):
        job(second=False).restore(at)


@pytest.mark.slow(15, "runs a job of three queries four times")
def test_a_query_removed_at_the_savepoint_has_come_back(lab: JobHarness) -> None:
    """What it had written before is nobody's to take away. The others write one table, which is put back for both."""
    gate, place = lab.folder / "gate", lab.folder / "savepoint"

    def job(*, second: bool = True) -> Job:
        made = sx.Job(lab.spark, "lab", state=lab.folder / "state")
        for uid, out in (("first", "out"), ("twin", "out"), *([("second", "second")] if second else [])):
            rows = numbers(lab.spark, f"{uid}-in", counts="30,30", max_rows_per_epoch=20, gate=gate)
            made.add(uid, table(lab, rows, uid).option("path", str(lab.folder / out)))
        return made if second else made.remove("second")

    running = job().start()
    until(lambda: min(query.rows for query in running.snapshot().queries) > 0, "all have begun")
    running.stop()
    begun = written(lab, "out")
    job(second=False).savepoint(place)
    gate.touch()
    assert job().run(progress=False).finished
    assert written(lab, "out", "second") == [120, 60]
    with refused(StateError, "query 'second' had run before the savepoint was taken", "job.remove('second')"):
        job().restore(place)
    assert written(lab, "out", "second") == [120, 60]
    assert job().restore(place, accept_duplicates="second-out").run(progress=False).finished
    assert written(lab, "out", "second") == [120, 120], "as was asked for"
    job(second=False).restore(place)
    assert written(lab, "out", "second") == [*begun, 120]
    with refused(StateError, "query 'second' was left out"):
        job().start()


def test_a_target_that_cannot_be_put_back_is_ahead_of_it(lab: JobHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Because another driver still commits, or because the state was put back from a backup: nothing has begun."""
    gate, place, out = lab.folder / "gate", lab.folder / "savepoint", lab.folder / "out"

    def job() -> Job:
        rows = numbers(lab.spark, "in", counts="30,30", max_rows_per_epoch=20, gate=gate)
        made = sx.Job(lab.spark, "lab", state=lab.folder / "state")
        return made.add("q", rows.writeStream.format("files_2pc").option("uid", "q-out").option("path", str(out)))

    def rows() -> int:
        return read(lab.spark, out).count()

    made = job().start()
    until(lambda: made.snapshot().query("q").rows > 0, "it has begun")
    made.stop(savepoint=place)
    begun = rows()
    shutil.copytree(lab.folder / "state", lab.folder / "backup")
    gate.touch()

    def meanwhile(*args: Any, **options: Any) -> Any:
        assert job().run(progress=False).finished
        return start_incarnation(*args, **options)

    monkeypatch.setattr("spark_ext.jobs.restoring.restore.start_incarnation", meanwhile)
    with refused(StateError, "sink 'q-out'", "the target is ahead of this state"):
        job().restore(place)
    monkeypatch.undo()
    assert rows() == 60 > begun
    assert job().run(progress=False).rows == 0, "no restore has begun"

    shutil.rmtree(lab.folder / "state")
    (lab.folder / "backup").rename(lab.folder / "state")
    for _ in range(6):  # an older state has older incarnations, each of which is fenced off
        with pytest.raises(SparkExtError) as refusal:
            job().restore(place)
        if isinstance(refusal.value, StateError):
            break
    assert "the target is ahead of this state" in str(refusal.value)
    assert rows() == 60


def test_an_exchanges_sources_that_the_savepoint_barely_knows(lab: JobHarness) -> None:
    """One that comes after rows were released is refused; one that is built later finds what is in flight."""
    gate = lab.folder / "gate"

    def job(*, producer: bool = True, more: bool = False) -> Job:
        made = sx.Job(lab.spark, "lab", state=lab.folder / "state")
        rows = numbers(lab.spark, "x-in", counts="20")
        x, y = (made.exchange(name, partitions=2, schema=rows.schema) for name in "xy")
        if producer:
            made.add("x", x.write(rows))
        else:
            made.remove("x")
        made.add("y", y.write(numbers(lab.spark, "y-in", counts="5")))
        made.add("read-y", table(lab, y.read("read-y-in"), "read-y"))
        if more:
            made.add("more", table(lab, y.read("more-in"), "more"))
        made.add("held", table(lab, numbers(lab.spark, "in", counts="20,20", max_rows_per_epoch=10, gate=gate), "held"))
        late = x.read("late-in")
        return made.add("late", lambda: table(lab, late, "late"), after="held")

    made = job().start()
    done = lambda: [query.uid for query in made.snapshot().queries if query.state is State.FINISHED]  # noqa: E731
    until(lambda: {"x", "y", "read-y"} <= set(done()), "the exchanges are sealed, and one of them was read")
    until(lambda: made.snapshot().query("held").rows > 0, "the other one is still to be read")
    made.stop(savepoint=lab.folder / "savepoint")
    with refused(StateError, "source 'more-in'", "the first 5 rows of exchange 'y' had been released"):
        job(more=True).restore(lab.folder / "savepoint")
    job(producer=False).restore(lab.folder / "savepoint")
    gate.touch()
    assert job(producer=False).run(progress=False).finished
    assert delta_numbers(lab.folder / "late") == expected(20)
    assert delta_numbers(lab.folder / "read-y") == expected(5)
