"""The identity under which a sink writes, and the refusal to write into a job's query without it."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow.fs as pafs

from spark_ext.errors import StateError
from spark_ext.model.identity import ONLY_JOBS, Identity, state_of
from spark_ext.spark.logs.spark_log import local_path
from spark_ext.stores import filesystem_of


def identity_of(given: Mapping[str, str], operator: str) -> Identity:
    """The identity in a writer's options; that of no job when the query runs outside any."""
    options = {name.lower(): value for name, value in given.items()}
    identity = Identity.of(options, operator)
    checkpoint = options.get("checkpointlocation", "")
    found = state_of(checkpoint)
    if identity.in_job or found is None or not _has_ledger(found[0]):
        return identity
    raise StateError(
        f"the query runs on the checkpoint of query '{found[1]}' of a job, and was not started by this job: "
        "nothing would fence its epochs",
        operator=operator,
        kept="nothing of this epoch was committed; the job's state is unchanged",
        do=f"start the query with job.run() ({ONLY_JOBS}), or give it a checkpoint location outside {found[0]}",
    )


def _has_ledger(state: str) -> bool:
    place = local_path(state)
    if place is not None:
        return (place / "ledger").is_dir()
    system, root = filesystem_of(state)
    return any(system.get_file_info(pafs.FileSelector(f"{root}/ledger", allow_not_found=True)))
