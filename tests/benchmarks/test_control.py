"""The arithmetic of the benchmarks of control events, their clients, and the inputs that need no server."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks._control import WITHOUT_LIMIT, Epoch, first_planned, made, period, rate
from benchmarks._control_clients import poll, posts
from benchmarks._figures import Sample, beside, in_pairs
from benchmarks.control_rates import files
from spark_ext.control.log import ControlLog
from spark_ext.control.requests import Accepted, Request
from spark_ext.ledger.schema import ControlEventRow
from spark_ext.server.limits import Limits
from spark_ext.server.server import ControlServer
from spark_ext.sources.files.source import Files


def every(seconds: float, count: int, rows: int = 10) -> list[Epoch]:
    """Epochs that begin one after the other at 100 s, each committed half a period later."""
    return [Epoch(number, at := 100 + number * seconds, at + seconds / 2, rows) for number in range(count)]


def test_a_percentile_lies_between_two_values_where_necessary() -> None:
    sample = Sample.of([4.0, 1.0, 3.0, 2.0, 5.0], "ms")
    assert [sample.percentile(percent) for percent in (0, 25, 50, 90, 100)] == pytest.approx([1, 2, 3, 4.6, 5])


def test_the_period_of_a_window_is_that_between_the_commits_in_it() -> None:
    assert period(every(2.0, 10), 103, 110) == pytest.approx(2000)


def test_a_window_with_one_commit_has_no_period() -> None:
    with pytest.raises(ValueError, match="1 epochs were committed"):
        period(every(2.0, 10), 100, 102)


def test_a_rate_counts_the_rows_of_all_epochs_but_the_first() -> None:
    # What the first one reads was allowed by the time before it.
    first, *others = every(0.5, 41, 5_000)
    assert rate([Epoch(first.number, first.began, first.committed, 10**6), *others], 0, float("inf")) == 10_000


def test_a_rate_ends_with_the_first_epoch_behind_the_time() -> None:
    found = [*every(1.0, 5), Epoch(5, 109, 110, 70), Epoch(6, 110, 111, 10**6)]
    assert rate(found, 100, 106) == pytest.approx((4 * 10 + 70) / 9)


def test_one_epoch_has_no_rate() -> None:
    with pytest.raises(ValueError, match="1 epochs began"):
        rate(every(1.0, 1), 0, 1000)


def test_the_order_of_sides_changes_and_each_has_a_value_per_round() -> None:
    called: list[str] = []

    def measure(side: str) -> float:
        called.append(side)
        return float(len(called))

    assert beside("abc", 2, measure) == {"a": [1, 6], "b": [2, 4], "c": [3, 5]}
    assert "".join(called) == "abcbca"


def test_pairs_are_of_one_round() -> None:
    assert in_pairs([2.0, 30.0], [1.0, 10.0]) == [2, 3]


def test_the_first_epoch_that_was_planned_at_a_moment_or_later() -> None:
    planned = {7: 3.0, 6: 2.0, 5: 1.0}
    assert [first_planned(planned, moment) for moment in (0, 1.5, 2.0, 3.5)] == [5, 6, 6, None]


def test_the_ledger_of_a_job_that_does_not_run_takes_events(tmp_path: Path) -> None:
    log = ControlLog(made(tmp_path / "state"))
    (answer,) = log.accept([Request("rate_limit", "source:in", {"rows_per_second": 5})])
    assert isinstance(answer, Accepted)


def test_files_have_the_rows_in_two_channels(tmp_path: Path) -> None:
    with files(tmp_path, 10) as options:
        source = Files({"uid": "in", **options})
        assert [Path(channel.id).name for channel in source.discover()] == ["part-0.parquet", "part-1.parquet"]


@pytest.mark.parametrize("in_flight", [1, 3])
def test_clients_of_a_burst_know_what_was_accepted_and_what_refused(tmp_path: Path, in_flight: int) -> None:
    ledger = made(tmp_path / "state")
    with ControlServer(ledger.uri, limits=Limits(rate=0.001, burst=30, refusal_seconds=0)) as server:
        found = posts(server.url, server.token or "", clients=4, each=12, in_flight=in_flight)
    rows = ledger.table(ControlEventRow).rows()
    assert found.statuses == {202: 30, 429: 18}
    assert len(found.times) == 30
    accepted = [sequence for client in found.accepted for _, sequence in client]
    assert sorted(accepted) == sorted(row.sequence for row in rows) == list(range(1, 31))
    if in_flight == 1:
        sequences = [[sequence for _, sequence in client] for client in found.accepted]
        assert all(client == sorted(client) for client in sequences)
    assert {row.kind for row in rows} == {"set_config", "broadcast"}


def test_clients_that_poll_are_answered_until_their_time_is_over(tmp_path: Path) -> None:
    ledger = made(tmp_path / "state")
    (answer,) = ControlLog(ledger).accept([Request("set_config", value={"key": "a", "value": 1})])
    assert isinstance(answer, Accepted)
    with ControlServer(ledger.uri, limits=WITHOUT_LIMIT) as server:
        found = poll(server.url, server.token or "", answer.event.event_id, 0.5, send=True)
    assert set(found.statuses) == {200, 202}
    assert found.times
