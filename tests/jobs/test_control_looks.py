"""How often the driver looks at control events."""

from __future__ import annotations

import pytest

from spark_ext.jobs.controlling.control_poll import look_pace


@pytest.mark.parametrize(("took", "every"), [(0.0, 0.0), (0.02, 0.2), (0.1, 1.0), (30.0, 1.0)], ids=str)
def test_looks_take_a_tenth_of_the_time_and_there_is_one_per_second_at_least(took: float, every: float) -> None:
    assert look_pace(took) == pytest.approx(every)
