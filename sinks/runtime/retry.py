"""Retries against a sink's target: the commit of an epoch, and the claim when a job starts."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from spark_ext.errors import TransientError
from spark_ext.masking import logger

if TYPE_CHECKING:
    import tenacity

    from spark_ext.sinks.contract import SinkOptions

log = logger("spark_ext.sink")


def attempts(options: SinkOptions, what: str, *, reraise: bool = False) -> tenacity.Retrying:
    """Attempts with back-off, as the sink's options say; errors that are not transient are raised at once.

    So is a `CommitError` without `retry_now`: the target has asked not to be called again soon. The last failure is
    raised itself with `reraise`, else as tenacity's `RetryError`.
    """
    import tenacity

    backoff = options.commit_backoff / 1000

    def warn(state: tenacity.RetryCallState) -> None:
        failure = state.outcome.exception() if state.outcome is not None else None
        wait = state.next_action.sleep if state.next_action is not None else 0.0
        log.warning("%s failed, next attempt in %.1f s: %s", what, wait, failure)

    return tenacity.Retrying(
        retry=tenacity.retry_if_exception(_passing),
        stop=_Enough(options.commit_attempts, options.commit_patience / 1000),
        wait=lambda state: min(backoff * (2 ** min(state.attempt_number - 1, 32) + random.random()), 10),
        before_sleep=warn,
        reraise=reraise,
    )


def _passing(failure: BaseException) -> bool:
    return isinstance(failure, (TransientError, OSError)) and getattr(failure, "retry_now", True)


class _Enough:
    """Ends the attempts after a number of them or, from the second on, `seconds` after the first failure."""

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
