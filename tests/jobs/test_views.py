"""What a job shows of itself beside its snapshot: plots, and the newest incident."""

from pathlib import Path

import pytest

from spark_ext.errors import ConfigurationError, StateError
from spark_ext.incidents.reporter import Incidents
from spark_ext.views.notebook import LastIncident
from spark_ext.views.plot.job import figure_of
from tests.support.page_states import shop

WHO = "job 'shop', plot"


def test_a_plot_is_made_from_the_state_directory(tmp_path: Path) -> None:
    shop(tmp_path / "state", hours=0.05)
    assert len(figure_of(str(tmp_path / "state"), (), WHO).axes) == 4
    (axes,) = figure_of(str(tmp_path / "state"), ["lag"], WHO).axes
    assert axes.get_title(loc="left") == "Rows still to be read"


def test_what_cannot_be_plotted_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="'colours' cannot be plotted") as refused:
        figure_of(str(tmp_path), ["epochs", "colours"], WHO)
    assert refused.value.do == "use one of: epochs, lag, channels"
    with pytest.raises(StateError, match="no job has been started"):
        figure_of(str(tmp_path), (), WHO)


def test_the_last_incident_is_the_newest_that_was_reported() -> None:
    incidents = Incidents()
    assert LastIncident.of(incidents) is None
    first = incidents.report("job 'shop', query 'a'", "failure", "the disk is full", "restart 1")
    incidents.report("job 'shop', query 'b'", "failure", "the server is down", "restart 1")
    found = LastIncident.of(incidents)
    assert found is not None and (found.type, found.what, found.open) == ("failure", "the server is down", True)
    incidents.report("job 'shop', query 'a'", "failure", "the disk is full", "restart 2")
    incidents.resolve(first, "it has been emptied")
    found = LastIncident.of(incidents)
    assert found is not None and (found.what, found.open) == ("the disk is full", False)
