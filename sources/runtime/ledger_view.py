"""A source planner's view of its job's ledger."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from spark_ext.ledger.view import SourceView
from spark_ext.model.barriers import Checkpoints
from spark_ext.model.control import Event
from spark_ext.spark.session.registry import Registration


class PlannerView:
    """Reads flags and control events through one kept handle, at most every 100 ms or so."""

    def __init__(self, registration: Registration) -> None:
        self._view = SourceView(
            registration.state,
            registration.uid,
            registration.lineage,
            query=registration.query,
            first_checkpoint=registration.first_checkpoint,
        )
        self._incarnation = registration.incarnation

    def confirmed(self) -> int:
        """The largest s such that the flags of the finishes 1..s are in the ledger."""
        return self._view.confirmed()

    def finished_channels(self, upto: int) -> Iterable[str]:
        """Ids of the channels whose finish has a sequence of at most `upto`."""
        return self._view.finished_channels(upto).keys()

    def barriers(self) -> tuple[Checkpoints, int]:
        """See `SourceView.checkpoints`."""
        return self._view.checkpoints(self._incarnation)

    def look_again(self) -> None:
        """Let the next question for events be answered from the ledger as it is then."""
        self._view.look_for_events()

    def events(self, after: int) -> Sequence[Event]:
        """The accepted control events above a sequence, in their order."""
        return self._view.events(after)
