"""A source planner's view of its job's ledger."""

from __future__ import annotations

from collections.abc import Iterable

from spark_ext.ledger.view import SourceView
from spark_ext.model.barriers import Checkpoints
from spark_ext.sources.runtime.planner import Requests
from spark_ext.spark.registry import Registration


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
        self._requests = Requests()
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

    def requests(self) -> Requests:
        """Control events in force; the ledger keeps them in the order of their sequence."""
        for event in self._view.controls(self._requests.control):
            self._requests = Requests(
                control=max(self._requests.control, event.sequence),
                drain=self._requests.drain or event.kind == "drain",
                final=max(self._requests.final, int(event.value or 0))
                if event.kind == "final_epoch"
                else self._requests.final,
            )
        return self._requests
