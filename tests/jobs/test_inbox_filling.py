"""When a gateway counts as filling, by its lease."""

import pytest

from spark_ext.ingest.log import Lease
from spark_ext.jobs.linking.leases import filling_of


@pytest.mark.parametrize(
    ("held", "known", "said"),
    [
        (499, False, None),
        (500, False, "holds 50% of its 1,000 bytes, and the oldest event has waited for 600 s; at the rate of"),
        (250, True, "it is full in 30 min"),
        (249, True, None),
        (1000, False, "has waited for 600 s"),
    ],
)
def test_a_gateway_fills_from_half_on_and_has_room_again_below_a_quarter(
    held: int, known: bool, said: str | None
) -> None:
    lease = Lease(1, "start", 0, "h", 1, "accepting", bytes=held, max_bytes=1000, oldest_unread=600.0)
    found = filling_of(lease, known=known)
    assert found is said is None or (found is not None and said is not None and said in found)
    assert filling_of(None, known=known) is filling_of(Lease(1, "start", 0, "h", 1, "closed"), known=known) is None
