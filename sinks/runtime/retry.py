"""How often the target of a sink is asked again: for the commit of an epoch, and for the claim at a job's start."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from spark_ext.errors import TransientError

if TYPE_CHECKING:
    import tenacity

    from spark_ext.sinks.contract import SinkOptions

log = logging.getLogger("spark_ext.sink")


def attempts(options: SinkOptions, what: str, *, reraise: bool = False) -> tenacity.Retrying:
    """Attempts with back-off, as the sink's options say; what is not transient is raised at once.

    Args:
        options: `commit_attempts`, `commit_backoff` and `commit_patience` of the sink.
        what: what is attempted, for the log: "the commit of epoch 3 of sink 'out'".
        reraise: whether the last failure is raised as it is, not as tenacity's `RetryError`.
    """
    import tenacity

    def say(state: tenacity.RetryCallState) -> None:
        failure = state.outcome.exception() if state.outcome is not None else None
        wait = state.next_action.sleep if state.next_action is not None else 0.0
        log.warning("%s failed, next attempt in %.1f s: %s", what, wait, failure)

    return tenacity.Retrying(
        retry=tenacity.retry_if_exception_type((TransientError, OSError)),
        stop=_Enough(options.commit_attempts, options.commit_patience / 1000),
        wait=tenacity.wait_exponential_jitter(
            multiplier=options.commit_backoff / 1000, max=10, jitter=options.commit_backoff / 1000
        ),
        before_sleep=say,
        reraise=reraise,
    )


class _Enough:
    """Ends the attempts: after so many, or a second one so many seconds after the first failure."""

    def __init__(self, attempts: int, seconds: float) -> None:
        self._attempts, self._seconds = attempts, seconds
        self._first: float | None = None

    def __call__(self, state: tenacity.RetryCallState) -> bool:
        failed = state.outcome_timestamp
        assert failed is not None
        if self._first is None:
            self._first = failed
        late = failed - self._first >= self._seconds
        return state.attempt_number >= self._attempts or (state.attempt_number > 1 and late)
