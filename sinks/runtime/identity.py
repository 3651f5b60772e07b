"""The identity under which a sink writes, and the refusal to write into a job's query without it."""

from __future__ import annotations

from collections.abc import Mapping

from spark_ext.errors import StateError
from spark_ext.model.identity import ONLY_JOBS, Identity, state_of
from spark_ext.storage import folder_at


def identity_of(given: Mapping[str, str], operator: str) -> Identity:
    """The identity in a writer's options; that of no job when the query runs outside any."""
    options = {name.lower(): value for name, value in given.items()}
    identity = Identity.of(options, operator)
    checkpoint = options.get("checkpointlocation", "")
    found = state_of(checkpoint)
    if identity.in_job or found is None or "ledger" not in folder_at(found[0]).names():
        return identity
    raise StateError(
        f"the query runs on the checkpoint of query '{found[1]}' of a job, and was not started by this job: "
        "nothing would fence its epochs",
        operator=operator,
        kept="nothing of this epoch was committed; the job's state is unchanged",
        do=f"start the query with job.run() ({ONLY_JOBS}), or give it a checkpoint location outside {found[0]}",
    )
