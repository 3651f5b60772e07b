"""What a job shows of itself beside its snapshot: plots, and the newest incident."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spark_ext.errors import ConfigurationError, StateError
from spark_ext.incidents.reporter import Incidents
from spark_ext.jobs.viewable import Viewable
from tests.support.page_states import shop


def job(state: str | Path, incidents: Incidents | None = None) -> Any:
    """What the methods need of a job."""
    context = None if incidents is None else SimpleNamespace(write_behind=SimpleNamespace(incidents=incidents))
    return SimpleNamespace(name="shop", state_directory=str(state), _context=context)


def test_a_plot_is_made_from_the_state_directory(tmp_path: Path) -> None:
    state = shop(tmp_path / "state", hours=0.05)
    assert len(Viewable.plot(job(state)).axes) == 4
    (axes,) = Viewable.plot(job(state), "lag").axes
    assert axes.get_title(loc="left") == "Rows still to be read"


def test_what_cannot_be_plotted_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="'colours' cannot be plotted") as refused:
        Viewable.plot(job(tmp_path), "epochs", "colours")
    assert refused.value.do == "use one of: epochs, lag, channels"
    with pytest.raises(StateError, match="no job has been started"):
        Viewable.plot(job(tmp_path))


def test_the_last_incident_is_the_newest_that_was_reported() -> None:
    incidents = Incidents()
    assert Viewable.last_incident(job("s")) is None and Viewable.last_incident(job("s", incidents)) is None
    first = incidents.report("job 'shop', query 'a'", "failure", "the disk is full", "restart 1")
    incidents.report("job 'shop', query 'b'", "failure", "the server is down", "restart 1")
    found = Viewable.last_incident(job("s", incidents))
    assert found is not None and (found.type, found.what, found.open) == ("failure", "the server is down", True)
    incidents.report("job 'shop', query 'a'", "failure", "the disk is full", "restart 2")
    incidents.resolve(first, "it has been emptied")
    found = Viewable.last_incident(job("s", incidents))
    assert found is not None and (found.what, found.open) == ("the disk is full", False)
