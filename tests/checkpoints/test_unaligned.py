"""Cuts of a job from real logs of exchanges: what the looks allow, what is in flight, what may be released."""

from dataclasses import replace
from pathlib import Path

import pytest

from spark_ext.checkpoints.unaligned import Logged, QueryLook, Taken, Unaligned
from spark_ext.errors import StateError
from spark_ext.exchange import decisions
from spark_ext.exchange.view import ExchangeView
from spark_ext.model.checkpoint_plan import NotNow, Reason
from spark_ext.model.commits import FenceMark
from spark_ext.model.cut import CutPoint, Position, release_bound
from spark_ext.model.dag import JobGraph, QueryNode, Reader
from spark_ext.model.offsets import LoggedOffsets
from tests.support.exchanges import Producer, descriptor, logged

GRAPH = JobGraph((QueryNode("a", (), ("x",)), QueryNode("b", (Reader("x", "x-in"),))))


def reader(*epochs: LoggedOffsets, finished: bool = False) -> QueryLook:
    return QueryLook("", tuple((one.epoch, one) for one in epochs), finished)


def taken_of(producer: Producer, older: Logged = (), **looks: QueryLook) -> Taken:
    found = take(producer, older, **looks)
    assert isinstance(found, Taken)
    return found


def take(producer: Producer, older: Logged = (), **looks: QueryLook) -> Taken | NotNow:
    view = ExchangeView(producer.master)
    assert view.look()
    return Unaligned(lambda query: older).take(GRAPH, looks, {"x": view})


def test_a_consumer_that_read_past_sparks_commits_steps_back(tmp_path: Path) -> None:
    """The sink commits a little before Spark does. What lies between the two queries is in flight."""
    producer = Producer(tmp_path)
    first, second, third = producer.write(0, 5, 3), producer.write(1, 4, 4), producer.write(3, 1, 0)
    epochs = [
        logged(0, [first + 1, 0], [first + 1, 0]),
        logged(1, [second, 2], [second, 4]),
        logged(2, [third + 1, 0], [third + 1, 0]),
    ]
    taken = taken_of(producer, a=producer.look(0, 1, 2), b=reader(*epochs))
    assert taken.cut.points == {"a": CutPoint(2), "b": CutPoint(1)}, "epoch 2 of the producer had no rows"
    assert taken.offsets["b"] == epochs[1]
    assert taken.rows_in_flight == 2, "of partition 0"
    assert release_bound(GRAPH, taken.cut) == {"x": second}, "the entry in which the consumer stands"
    taken = taken_of(producer, a=producer.look(0, 1, 2, 3), b=reader(*epochs))
    assert taken.cut.points["b"] == CutPoint(2) and taken.rows_in_flight == 0


def test_a_step_back_beyond_what_is_remembered_reads_sparks_log(tmp_path: Path) -> None:
    producer = Producer(tmp_path)
    first, second = producer.write(0, 5, 3), producer.write(1, 4, 4)
    ahead = logged(7, [second + 1, 0], [second + 1, 0])
    behind = logged(6, [first + 1, 0], [first + 1, 0])
    looks = {"a": producer.look(0), "b": reader(ahead)}
    assert taken_of(producer, [(6, behind), (7, ahead)], **looks).cut.points["b"] == CutPoint(6)
    assert take(producer, [(7, ahead)], **looks) == NotNow(Reason.FORGOTTEN, "b"), "Spark has removed it"


def test_a_step_back_takes_nothing_committed_after_the_look(tmp_path: Path) -> None:
    """A release that has taken a later cut than a savepoint of the same time would have deleted what that one needs."""
    producer = Producer(tmp_path)
    first, second = producer.write(0, 5, 3), producer.write(1, 4, 4)
    epochs = [logged(6, [first, 1], [first, 3]), logged(7, [second + 1, 0], [second + 1, 0])]
    later = logged(8, [first + 1, 0], [first + 1, 0])
    taken = taken_of(producer, [(one.epoch, one) for one in (*epochs, later)], a=producer.look(0), b=reader(epochs[1]))
    assert taken.cut.points["b"] == CutPoint(6)


def test_an_aligned_place_is_never_exchanged_for_an_older_one(tmp_path: Path) -> None:
    producer = Producer(tmp_path)
    first, second = producer.write(0, 5, 3), producer.write(1, 4, 4)
    ahead, behind = logged(7, [second + 1, 0], [second + 1, 0]), logged(6, [first + 1, 0], [first + 1, 0])
    looks = {"a": producer.look(0), "b": replace(reader(ahead), exact=True)}
    assert take(producer, [(6, behind), (7, ahead)], **looks) == NotNow(Reason.INCONSISTENT, "b")


def test_the_seal_belongs_to_a_cut_with_a_finished_producer(tmp_path: Path) -> None:
    """Entries such as the claim of a later start may lie between the last epoch and the seal."""
    producer = Producer(tmp_path)
    first = producer.write(0, 5, 3)
    mark = FenceMark(1, 7)
    producer.master.log.append(lambda state: decisions.register_entry(state, "late", "c", 0), "1")
    producer.seal(0)
    producer.master.log.append(lambda state: decisions.release_entry(state, 1, 0, mark, "x", 0), "1")
    done = [logged(0, [first + 1, 0], [first + 1, 0]), logged(1, ended=True)]
    taken = taken_of(producer, a=producer.look(0), b=reader(*done))
    assert taken.cut.points["b"] == CutPoint(0), "the final checkpoint is not complete"
    taken = taken_of(producer, a=producer.look(0, finished=True), b=reader(*done))
    assert taken.cut.points == {"a": CutPoint(0, True), "b": CutPoint(1)}
    taken = taken_of(producer, a=producer.look(0, finished=True), b=reader(*done, finished=True))
    assert taken.cut.points["b"] == CutPoint(1, True)


@pytest.mark.parametrize("finished", [False, True])
def test_what_is_released_still_counts_as_written(tmp_path: Path, finished: bool) -> None:
    producer = Producer(tmp_path)
    first = producer.write(0, 5, 3)
    mark = FenceMark(1, 7)
    producer.master.log.append(lambda state: decisions.release_entry(state, first + 1, 8, mark, "x", 0), "1")
    producer.master.delete_released()
    second = producer.write(1, 2, 2)
    if finished:
        producer.seal(1)
    here = logged(4, [first + 1, 0], [first + 1, 0])
    taken = taken_of(producer, a=producer.look(0), b=reader(here))
    assert taken.cut.points == {"a": CutPoint(0), "b": CutPoint(4)}
    taken = taken_of(producer, a=producer.look(0, 1, finished=finished), b=reader(here))
    assert taken.rows_in_flight == 4
    (part,) = taken.cut.in_flight
    assert part.begin == Position.behind(first + 1) and part.end > second


def test_a_recreated_exchange_is_not_released_by_old_knowledge(tmp_path: Path) -> None:
    producer = Producer(tmp_path)
    producer.write(0, 5, 3)
    view = ExchangeView(producer.master)
    assert view.look()
    (tmp_path / "x").rename(tmp_path / "old")
    with pytest.raises(StateError, match="was deleted while the job runs"):
        view.look()
    again = Producer(tmp_path)
    about = descriptor("x", partitions=2, id="another")
    (tmp_path / "x" / "exchange.json").write_text(about.to_json())
    with pytest.raises(StateError, match="was deleted and created again while the job runs"):
        view.look()
    assert ExchangeView(again.master).look()
