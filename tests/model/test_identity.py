"""The identity that a sink finds in its writer's options."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ext.errors import StateError
from spark_ext.model.identity import OPTION, OUTSIDE, Identity, state_of

identities = st.builds(
    Identity, job=st.text(), query=st.text(), state=st.text(), lineage=st.integers(0, 9), incarnation=st.integers(1, 9),
    start=st.integers(1, 2**63 - 1),
)  # fmt: skip


@given(identities)
def test_an_identity_survives_the_options_that_have_it(identity: Identity) -> None:
    assert Identity.of({OPTION: identity.encode(), "path": "x"}, "sink 'out'") == identity
    assert Identity.of({"path": "x"}, "sink 'out'") is OUTSIDE
    assert not OUTSIDE.in_job


@pytest.mark.parametrize("text", ["", "1", "{}", '{"job": 3}', json.dumps({"incarnation": "7"})])
def test_a_value_that_no_job_has_set_is_refused(text: str) -> None:
    with pytest.raises(StateError, match="not what a job sets"):
        Identity.of({OPTION: text}, "sink 'out'")


def test_a_checkpoint_of_a_job_is_known_by_its_form() -> None:
    assert state_of("s3://b/state/flights/queries/daily/checkpoint") == ("s3://b/state/flights", "daily")
    assert state_of("/tmp/state/queries/daily/checkpoint/") == ("/tmp/state", "daily")
    assert state_of("/tmp/checkpoint") is None
