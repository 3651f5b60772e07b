"""On whose behalf a sink writes: its job's identity, carried in the writer's own options. Pure.

The job sets the option when it starts the query, as it sets the checkpoint's location, so no folder or process has to
be found again when an epoch commits. A query that runs on a job's checkpoint without it is refused: its epochs would
carry no fence, and a lineage that is not theirs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Final

from spark_ext.errors import StateError

OPTION: Final = "spark_ext.identity"  # the writer's option; in lower case, as Spark hands options over in lower case
_CHECKPOINT: Final = re.compile(r"(?P<state>.+)/queries/(?P<query>[^/]+)/checkpoint/*")


@dataclass(frozen=True)
class Identity:
    """A sink's place in a started job. Without a job all is empty or 0, and nothing is fenced."""

    job: str = ""
    job_id: str = ""  # drawn at the job's first start
    query: str = ""
    state: str = ""  # path or URI of the job's state directory
    checkpoint: str = ""  # path or URI of Spark's checkpoint directory of the query
    lineage: int = 0
    incarnation: int = 0
    start: int = 0  # random number of this start
    samples: bool = False  # whether processes that work for it can be asked for their stacks
    parts: bool = False  # whether its tasks say how long the user's code ran
    early: str = ""  # Spark's id of the query of which this is a copy that shows open windows; "": it is none
    syncs: bool = False  # whether each epoch is durable before it counts, as what it was read from is deleted then

    @property
    def in_job(self) -> bool:
        """Whether it is a job's."""
        return self.incarnation > 0

    def encode(self) -> str:
        """The option's value."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def of(cls, options: Mapping[str, str], operator: str) -> Identity:
        """The identity that a writer's options carry; `NO_JOB` without these options."""
        text = options.get(OPTION)
        if text is None:
            return OUTSIDE
        try:
            found = json.loads(text)
            kinds = {field.name: type(field.default) for field in fields(cls)}
            if set(found) != set(kinds) or any(type(value) is not kinds[name] for name, value in found.items()):
                raise ValueError("its fields are not those of an identity")
            return cls(**found)
        except (ValueError, TypeError) as problem:
            raise StateError(
                f"the option '{OPTION}' is not what a job sets: {problem}",
                operator=operator,
                kept="nothing was written",
                do=f"remove the option; {ONLY_JOBS}",
            ) from None


OUTSIDE: Final = Identity()

ONLY_JOBS: Final = "a job sets it when it starts its queries"


def state_of(checkpoint: str) -> tuple[str, str] | None:
    """The state directory and the query's uid of a checkpoint directory that has the form of a job's; else None."""
    match = _CHECKPOINT.fullmatch(checkpoint)
    return (match["state"], match["query"]) if match else None
