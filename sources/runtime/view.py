"""What a planner reads of its job's ledger, and the view of a source that has none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from spark_ext.model.barriers import NO_BARRIER, Checkpoints
from spark_ext.model.control import Event
from spark_ext.model.offsets import Json
from spark_ext.spark.session.registry import Registration


class LedgerView(Protocol):
    """What a planner reads of the job's ledger."""

    def confirmed(self) -> int:
        """The largest s such that the flags of the finishes 1..s are in the ledger."""

    def finished_channels(self, upto: int) -> Iterable[str]:
        """Ids of the channels whose finish has a sequence of at most `upto`."""

    def finished_data(self, upto: int) -> Mapping[str, Json]:
        """What the source knew of those channels, by their ids."""

    def events(self, after: int) -> Sequence[Event]:
        """The accepted control events above a sequence, in their order; looked up at most every 100 ms or so."""

    def refresh_events(self) -> None:
        """Let the next question for events be answered from the ledger as it is then."""

    def barriers(self) -> tuple[Checkpoints, int]:
        """The aligned checkpoints, and the newest pending one that the source stamps by itself; 0: none."""


class NoLedger:
    """The view outside a job: nothing is ever confirmed, so finished channels stay in the offset."""

    def confirmed(self) -> int:
        """Nothing is."""
        return 0

    def finished_channels(self, upto: int) -> Iterable[str]:
        """None are known."""
        return ()

    def finished_data(self, upto: int) -> Mapping[str, Json]:
        """None are known."""
        return {}

    def events(self, after: int) -> Sequence[Event]:
        """None are accepted."""
        return ()

    def refresh_events(self) -> None:
        """There is nothing to look at."""

    def barriers(self) -> tuple[Checkpoints, int]:
        """No barriers."""
        return Checkpoints(), NO_BARRIER


class PlannerView:
    """Reads flags and control events through one kept handle, at most every 100 ms or so."""

    def __init__(self, registration: Registration) -> None:
        from spark_ext.ledger.view import SourceView  # loads deltalake, which a planner outside a job does not need

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

    def finished_data(self, upto: int) -> Mapping[str, Json]:
        """What the source knew of those channels, by their ids."""
        return self._view.finished_data(upto)

    def barriers(self) -> tuple[Checkpoints, int]:
        """See `SourceView.checkpoints`."""
        return self._view.checkpoints(self._incarnation)

    def refresh_events(self) -> None:
        """Let the next question for events be answered from the ledger as it is then."""
        self._view.look_for_events()

    def events(self, after: int) -> Sequence[Event]:
        """The accepted control events above a sequence, in their order."""
        return self._view.events(after)
