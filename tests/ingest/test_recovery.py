"""Random histories of a gateway: crashes at every step, power failures, failing disks, and processes that wake up late.

Whatever happens, each acknowledged event is in the log exactly once, in order.
"""

import random
import shutil
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from spark_ext.errors import FencedError
from spark_ext.failpoints import FailPoint
from spark_ext.ingest.channel import OwnedChannel
from tests.ingest.ingest_kit import ORDERS, Crash, World, request, unlock

POINTS = st.one_of(st.just(0), st.integers(1, 6))


class Gateways(RuleBasedStateMachine):
    @initialize(seed=st.integers(0, 1 << 30), ack=st.sampled_from(["disk", "disk", "store"]))
    def begin(self, seed: int, ack: str) -> None:
        self.folder = Path(mkdtemp())
        self.world = World(self.folder, replace(ORDERS, ack=ack))
        self.reader = self.world.log()
        self.machine = self.world.machine()
        self.machine.__enter__()
        self.chance = random.Random(seed)
        self.acknowledged: list[str] = []
        self.sent = 0
        self.channel: OwnedChannel | None = None
        self.frozen: list[OwnedChannel] = []

    def teardown(self) -> None:
        if self.channel is not None:
            self.gone()
        self.start(0)
        assert self.channel is not None
        self.check_delivered()
        delivered = self.world.delivered
        assert len(set(delivered)) == len(delivered)
        assert {*self.acknowledged} <= {*delivered}
        self.channel.close()
        self.machine.__exit__(None, None, None)
        shutil.rmtree(self.folder)

    def do(self, work: str) -> bool:
        """Let the process do something, which may end it; a failing disk does not."""
        assert self.channel is not None
        try:
            getattr(self.channel, work)()
            return True
        except OSError:
            return False
        except Crash:
            self.gone()
            return False

    def gone(self) -> None:
        assert self.channel is not None
        self.channel.close()
        self.channel = None
        self.world.disk.power_failure(self.world.wal, self.chance)

    @rule(crash=POINTS)
    def start(self, crash: int) -> None:
        if self.channel is None:
            self.world.points.arm(crash)
            try:
                self.channel = self.world.open()
            except Crash:
                self.world.disk.power_failure(self.world.wal, self.chance)

    @precondition(lambda self: self.channel is not None)
    @rule(sizes=st.lists(st.integers(1, 50), min_size=1, max_size=4), crash=POINTS, fails=st.booleans())
    def commit(self, sizes: list[int], crash: int, fails: bool) -> None:
        assert self.channel is not None
        self.world.points.arm(crash if crash < 3 else 0, OSError if fails else Crash)
        bodies = [f"{self.sent + number}-".ljust(size, "x") for number, size in enumerate(sizes)]
        self.sent += len(sizes)
        try:
            self.channel.commit([request(body) for body in bodies])
            self.acknowledged += bodies
        except OSError:
            assert self.channel.broken
        except Crash:
            self.gone()

    @precondition(lambda self: self.channel is not None)
    @rule(work=st.sampled_from(["switch", "mend", "roll", "settle"]), crash=POINTS, fails=st.booleans())
    def keep(self, work: str, crash: int, fails: bool) -> None:
        self.world.points.arm(crash, OSError if fails else Crash)
        self.do(work)

    @precondition(lambda self: self.channel is not None)
    @rule(crash=POINTS)
    def release(self, crash: int) -> None:
        self.check_delivered()
        assert self.world.position is not None
        self.reader.release(self.world.position[0])
        self.world.points.arm(crash)
        self.do("release")

    @precondition(lambda self: self.channel is not None)
    @rule()
    def power_failure(self) -> None:
        self.gone()

    @precondition(lambda self: self.channel is not None)
    @rule()
    def freeze(self) -> None:
        """Its lock is lost, as that of a machine which a network has cut off, and it does not know."""
        assert self.channel is not None
        unlock(self.channel)
        self.frozen.append(self.channel)
        self.channel = None
        self.start(0)

    @precondition(lambda self: self.frozen and self.channel is not None)
    @rule(work=st.sampled_from(["switch", "mend", "roll", "release", "seal"]), number=st.integers(0, 99))
    def wake(self, work: str, number: int) -> None:
        self.world.points.arm(0)
        old = self.frozen[number % len(self.frozen)]
        try:
            getattr(old, work)()
            assert work != "seal"
        except FencedError:
            pass
        with pytest.raises((FencedError, OSError)):
            old.commit([request("of a process that another one has replaced")])

    @invariant()
    def nothing_acknowledged_is_lost_or_doubled(self) -> None:
        if self.channel is not None and self.chance.random() < 0.2:
            self.check_delivered()

    def check_delivered(self) -> None:
        self.world.read(self.reader)
        delivered, known = self.world.delivered, set(self.acknowledged)
        found = [one for one in delivered if one in known]
        assert found == self.acknowledged[: len(found)]


TestGateways = Gateways.TestCase
TestGateways.settings = settings(max_examples=settings().max_examples // 2, stateful_step_count=30)


@pytest.mark.parametrize("point", [one.value for one in FailPoint if one.startswith("ingest.")])
def test_g1_g8_a_start_after_a_crash_at_any_point_has_all(point: str, tmp_path: Path) -> None:
    world = World(tmp_path)
    acknowledged, reader = ["a", "b", "c"], world.log()

    def live() -> None:
        channel = world.open()
        try:
            channel.commit([request("d")])
            acknowledged.append("d")
            channel.settle()
            world.read(reader)
            reader.release(reader.look().last + 1)
            channel.release()
            channel.seal()
        finally:
            channel.close()

    with world.machine():
        first = world.open()
        first.commit([request("a"), request("b")])
        first.settle()
        first.commit([request("c")])
        unlock(first)  # it is gone, and leaves a tail
        world.points.name = point
        with pytest.raises(Crash):
            live()
        world.points.name = ""
        if reader.look().sealed is None:
            world.open().close()
        world.read(reader)
    assert [one for one in world.delivered if one in acknowledged] == acknowledged
    assert len(set(world.delivered)) == len(world.delivered)
