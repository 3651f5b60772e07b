"""Whether a gateway is alive, and whether its clock agrees with the driver's: by its lease, and clocks of the test."""

import os
from pathlib import Path

import pytest

from spark_ext.ingest.log import LEASE, Lease
from spark_ext.jobs.linking.leases import CLOCKS_WITHIN, RENEWED_WITHIN, SILENT_AFTER, LeaseWatch
from spark_ext.storage import LocalFolder

HOUR = 3_600.0


class Gateway:
    """A gateway, the driver that watches it, and three clocks: of the gateway `ahead`, and of the storage `stored`."""

    def __init__(self, folder: Path, ahead: float = 0.0, stored: float = 0.0) -> None:
        self.folder, self.ahead, self.stored, self.now = LocalFolder(folder), ahead, stored, 2 * HOUR
        self.watch = LeaseWatch(self.folder, lambda: self.now - HOUR, lambda: self.now)

    def write(self, state: str = "accepting") -> None:
        self.folder.write(LEASE, Lease(1, "start", round((self.now + self.ahead) * 1000), "h", 1, state).to_json())
        os.utime(self.folder.path / LEASE, (self.now + self.stored,) * 2)

    def silence(self, *, draining: bool = False, known: bool = False) -> str | None:
        self.watch.look()
        return self.watch.silence(draining=draining, known=known)


@pytest.mark.parametrize("ahead", [0.0, HOUR, -HOUR])
def test_g6_a_gateway_is_silent_when_its_lease_stays_as_it_is_whatever_its_clock_says(
    tmp_path: Path, ahead: float
) -> None:
    gateway = Gateway(tmp_path, ahead)
    for _ in range(10):
        gateway.write()
        assert gateway.silence() is None
        gateway.now += 5
    gateway.now += SILENT_AFTER - 5 - 0.1
    assert gateway.silence() is None
    gateway.now += 0.2
    assert gateway.silence() == "its lease, of host h, has not changed for 30 s"
    gateway.write()
    assert gateway.silence(known=True) is None and gateway.watch.age == 0


@pytest.mark.parametrize(
    ("stored", "before", "after"),
    [
        (0.0, HOUR, RENEWED_WITHIN),  # it is dead
        (0.0, 25.0, RENEWED_WITHIN),
        (0.0, 15.0, 15.0),
        (-HOUR, 0.0, RENEWED_WITHIN),  # it would have written another one by then
        (HOUR, 0.0, SILENT_AFTER),
    ],
)
def test_the_first_lease_is_as_old_as_the_storage_says_unless_another_one_follows(
    tmp_path: Path, stored: float, before: float, after: float
) -> None:
    gateway = Gateway(tmp_path, stored=stored)
    gateway.write()
    gateway.now += before
    at_once = before - stored >= SILENT_AFTER
    assert gateway.silence() is None and (gateway.silence(known=True) is not None) == at_once
    gateway.now += after - 0.1
    assert gateway.silence() is None
    gateway.now += 0.2
    assert gateway.silence() is not None


def test_a_gateway_that_has_ended_is_silent_in_a_drain_alone(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path)
    assert gateway.silence(draining=True) is gateway.watch.clock_error() is None, "it has only just begun"
    gateway.write("closed")
    assert gateway.silence(draining=True) == "it was stopped, and its log is not sealed"
    gateway.now += HOUR
    assert gateway.silence() is None


@pytest.mark.parametrize("ahead", [HOUR, -HOUR, CLOCKS_WITHIN - 1, 1 - CLOCKS_WITHIN])
def test_a_clock_that_is_off_is_told_by_two_leases(tmp_path: Path, ahead: float) -> None:
    gateway = Gateway(tmp_path)

    def renewed(ahead: float) -> str | None:
        gateway.ahead = ahead
        gateway.now += 5
        gateway.write()
        gateway.watch.look()
        return gateway.watch.clock_error()

    assert [renewed(0.0), renewed(0.0), renewed(0.0)] == [None, None, ""]
    assert renewed(ahead) == "", "it may have come late"
    side = "3,600 s ahead of" if ahead > 0 else "3,600 s behind"
    wrong = f"has a clock that is about {side} the driver's; its host is h" if abs(ahead) == HOUR else ""
    assert renewed(ahead) == wrong
    gateway.now += HOUR
    gateway.watch.look()
    assert gateway.watch.clock_error() == wrong, "nothing new is known"
    assert renewed(0.0) == ""
