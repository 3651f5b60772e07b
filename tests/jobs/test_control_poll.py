"""How often the driver polls control events."""

from __future__ import annotations

import pytest

from spark_ext.jobs.controlling.control_poll import poll_pace


@pytest.mark.parametrize(("took", "every"), [(0.0, 0.0), (0.02, 0.2), (0.1, 1.0), (30.0, 1.0)], ids=str)
def test_polls_take_a_tenth_of_the_time_at_most(took: float, every: float) -> None:
    assert poll_pace(took) == pytest.approx(every)
