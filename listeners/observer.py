"""An Observer: watches all streaming queries of a session.

    spark.streams.addListener(sx.listeners.Observer(state="./state/observed", name="nightly"))

It explains them as a job explains its own: execution states, epochs, failures with their verdicts, stalls with stacks,
incidents with listeners, metrics, and the web page. It decides nothing: it never stops or starts a query.
"""

from __future__ import annotations

import atexit
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.streaming.query import StreamingQueryManager

from spark_ext.errors import refused
from spark_ext.failures.classifier import load
from spark_ext.metrics.exporters import check_measuring
from spark_ext.observing.dump_folder import check_dumps
from spark_ext.observing.job_incidents import JobIncidents
from spark_ext.observing.observation import Observation
from spark_ext.options import UID
from spark_ext.settings import JobSettings
from spark_ext.spark.backend import process
from spark_ext.spark.backend.kinds import require_classic
from spark_ext.spark.backend.listeners import InJvm, wrapped
from spark_ext.storage import Location, check_for_delta, local_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Settings that an Observer has. With any other a job decides something, which an Observer never does.
WATCHING: Final = (
    *("dumps", "dumps_kept", "dumps_size", "epoch_parts", "failures", "heartbeat", "incidents", "maintenance_interval"),
    *("metrics", "metrics_host", "metrics_port", "monitor_interval", "opentelemetry", "outage_patience"),
    *("slow_factor", "stall_after"),
)


def observer_settings(name: str, given: Mapping[str, Any]) -> JobSettings:
    """The settings of an Observer."""
    others = sorted(set(given) - set(WATCHING), key=lambda one: (one not in JobSettings.model_fields, one))
    if others:
        what, do = f"unknown setting '{others[0]}'", "use one of"
        if others[0] in JobSettings.model_fields:
            what = f"the setting '{others[0]}' is that of a job: an Observer decides nothing"
            do = "leave it out, or use"
        raise refused(what, f"Observer '{name}'", f"{do}: {', '.join(WATCHING)}", kept="nothing was started")
    return JobSettings.of(name, given)


_NOTHING = "nothing is watched; the queries are not touched"


class Observer(InJvm):
    """Watches the queries of the session to which it is added, from then on and those that run already.

    Queries of a `Job` in the same session are left to their job. What is watched is written to a ledger of its own,
    which `spark-ext status`, `timeline`, `incidents`, `report`, `top` and `serve` read as that of a job.

    It ends when it is removed, when Spark is stopped, and with the interpreter. A state directory has one Observer at a
    time; another one continues the history.

    Args:
        state: path or object-store URI of its state directory; made when absent.
        name: under which it is shown, kept in the state directory.
        takeover: start although another driver seems to use the directory; that one is fenced off.
        settings: those of a job that concern watching; see `docs/observer.md`.

    Raises:
        ConfigurationError: a bad name or setting, or an invalid file of failure rules or incidents.
        EnvironmentProblem: the library that a setting or an incident listener needs is not installed.
    """

    def __init__(self, *, state: str | Path, name: str, takeover: bool = False, **settings: Any) -> None:
        super().__init__()
        if not UID.fullmatch(name):
            raise refused(
                f"'{name}' cannot be the name of an Observer",
                f"Observer '{name}'",
                "use letters, digits and . _ ~ -, beginning with a letter or digit, at most 128",
                kept=_NOTHING,
            )
        self.name = name
        self.settings = observer_settings(name, settings)
        # Refused here rather than when it is added, which reads both again.
        JobIncidents.load(self.settings.incidents, load(self.settings.failures))
        check_measuring(name, self.settings)
        place = local_path(str(state))
        self.state_directory = str(state) if place is None else str(place.expanduser().resolve())
        check_for_delta(Location(self.state_directory), f"Observer '{name}', state directory")
        check_dumps(self.settings, self.state_directory, f"Observer '{name}', setting 'dumps'")
        self._takeover = takeover
        self._observation: Observation | None = None

    @property
    def watching(self) -> bool:
        """Whether it is added to a session, and has not ended."""
        return self._observation is not None and not self._observation.over

    @property
    def dropped(self) -> int:
        """Events for which the queue had no room: what they said was found by looking."""
        return 0 if self._observation is None else self._observation.inbox.dropped

    def when_client(self, session: SparkSession) -> None:
        """See `InJvm`."""
        require_classic(session, f"Observer '{self.name}'", kept=_NOTHING)

    def when_added(self, streams: StreamingQueryManager | None) -> Any:
        """See `InJvm`."""
        if self.watching:
            raise refused(
                "it watches the queries of a session already",
                f"Observer '{self.name}'",
                "make another one, with a state directory of its own, for a further session",
                kept="it continues to watch",
            )
        spark = process.session()
        if spark is None:
            raise refused("no Spark session was found", "an Observer", "create one first", kept=_NOTHING)
        self._observation = Observation(
            spark, streams or spark.streams, self.name, self.state_directory, self.settings, takeover=self._takeover
        )
        in_jvm = wrapped(self._observation.inbox)
        self._observation.start(in_jvm)
        atexit.register(self.end, "the interpreter has exited")
        return in_jvm

    def when_removed(self) -> None:
        """See `InJvm`."""
        self.end("the listener was removed")

    def end(self, reason: str = "on request") -> None:
        """Stop watching, in order: what is known is written, and listeners of incidents have two seconds.

        `spark.streams.removeListener` does the same. Repeated calls do nothing.

        Args:
            reason: why, for the ledger.
        """
        atexit.unregister(self.end)
        if self._observation is not None:
            self._observation.end(reason)
