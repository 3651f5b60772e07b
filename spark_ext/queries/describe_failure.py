"""A failure that came through Spark, as one of our errors, with its verdict and what is to be done about it.

What Spark and its workers say decides, each exception by its own class; the message of a user's exception decides
nothing.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from spark_ext.errors import RESET, ConfigurationError, SparkExtError, StateError, StorageError, from_text
from spark_ext.failures.classifier import Classifier
from spark_ext.failures.evidence import Evidence
from spark_ext.failures.labels import FailureType, Response
from spark_ext.failures.python_error import exceptions, said_by
from spark_ext.failures.verdict import Verdict
from spark_ext.incidents.reporter import STOPPED
from spark_ext.masking import mask
from spark_ext.model.restarts import Handling
from spark_ext.spark.backend.failures import evidence_of

if TYPE_CHECKING:
    from spark_ext.queries.context import WatchContext

CHANGED: Final = "definition changed"  # the label `cause` of a state or checkpoint that does not fit the query
LATE: Final = "written late"  # the label `cause` of state that somebody has written where a query begins
LONGEST_STACK: Final = 20_000  # characters of a stack that an incident keeps


class SparkFailure(Exception):
    """A failure with what is known of it, read while Spark was still there; its text has the stack of the JVM."""

    def __init__(self, text: str, evidence: Evidence, verdict: Verdict) -> None:
        super().__init__(text)
        self.evidence = evidence
        self.verdict = verdict

    @classmethod
    def of(cls, failure: BaseException, classifier: Classifier, *, job: str, query: str, epoch: int) -> BaseException:
        """The failure with its evidence and verdict; the failure itself if it is one of our errors, or has them.

        May take its time: it asks the JVM, and calls plugins.
        """
        if isinstance(failure, (SparkExtError, cls)):
            return failure
        packages = classifier.user_packages
        try:
            evidence = evidence_of(failure, packages)
        except Exception:  # the JVM is going away: what Python has is left
            evidence = Evidence(tuple(exceptions(failure, packages)), text=said_by(failure))
        return cls(evidence.text, evidence, classifier.classify(evidence, job=job, query=query, epoch=epoch))


@dataclass(frozen=True)
class Diagnosis:
    """What is said of a failure, and what is to be done about it."""

    error: SparkExtError
    verdict: Verdict
    handling: Handling
    evidence: Evidence
    epoch: int

    @property
    def sign(self) -> str:
        """What it looks like: two failures with one sign are the same failure of the same epoch."""
        return f"{self.epoch} {self._look}"

    @property
    def fingerprint(self) -> str:
        """What it looks like, in whatever epoch: equal for failures that are one incident."""
        return hashlib.sha256(self._look.encode("utf-8", "surrogatepass")).hexdigest()[:16]

    @property
    def _look(self) -> str:
        verdict = self.verdict
        return f"{verdict.labels.get('type')} {verdict.raised.kind} {verdict.raised.condition} {verdict.place}"

    @property
    def stored(self) -> dict[str, Any]:
        """For the ledger's incident: the stack, the verdict and the exceptions, cut to a size, secrets masked."""
        return {
            "stack": mask(self.evidence.text)[:LONGEST_STACK],
            "verdict": self.verdict.to_json(),
            **self.evidence.to_json(),
        }


def diagnosed(
    failure: BaseException, operator: str, committed: int, classifier: Classifier, query: str = ""
) -> Diagnosis:
    """The failure of the epoch after the newest committed one, by the rules alone, as plugins may block.

    `query` is for advice.
    """
    if isinstance(failure, SparkFailure):
        evidence, verdict = failure.evidence, failure.verdict
    else:
        evidence = Evidence(tuple(exceptions(failure, classifier.user_packages)), text=said_by(failure))
        verdict = classifier.judge(evidence)
    row = classifier.decision(verdict.labels)
    handling = Handling(row.do, row.attempts, row.outage, row.most, row.window)
    error = failure if isinstance(failure, SparkExtError) else _error(verdict, evidence, operator, committed, row.do)
    if query:
        error.advising(query)
    return Diagnosis(error, verdict, handling, evidence, committed + 1)


class QueryFailures:
    """The failures of one query: judges and records them, and keeps the one for which the query was given up."""

    def __init__(self, uid: str, operator: str, context: WatchContext) -> None:
        self.error: SparkExtError | None = None  # why the query failed for good; None unless it did
        self.response: Response | None = None  # what is to be done about the failure for which it was given up
        self._uid = uid
        self._operator = operator
        self._context = context

    def diagnosed(self, failure: BaseException, committed: int) -> Diagnosis:
        """See `diagnosed`."""
        return diagnosed(failure, self._operator, committed, self._context.classifier, self._uid)

    def record(self, what: str, action: str, found: Diagnosis, *, last: bool = False) -> str:
        """Record a failure; returns the incident's id.

        `last`: the query is given up. That is another incident than the one that was retried: listeners are notified of
        it, and not of each attempt.
        """
        fingerprint = f"{found.fingerprint}-last" if last else found.fingerprint
        return self._context.write_behind.incident(
            self._operator, "failure", what, action, found.stored, found.verdict.labels, fingerprint=fingerprint
        )

    def give_up(self, error: SparkExtError, found: Diagnosis, reason: str) -> str:
        """The query has failed for good; returns the incident's id."""
        self.error, self.response = error, found.handling.response
        return self.record(reason, STOPPED, found, last=True)

    def abandon(self, error: SparkExtError) -> None:
        """The query is given up with its job: nothing is written."""
        self.error = error


def _error(verdict: Verdict, evidence: Evidence, operator: str, committed: int, response: Response) -> SparkExtError:
    kept = f"all epochs up to {committed} are committed" if committed >= 0 else "no epoch was committed before"
    where = {"operator": f"{operator}, epoch {committed + 1}", "kept": f"{kept}; this one left nothing visible"}
    found = _ours(evidence) or _special(verdict, where)
    if found is None:
        # A disk comes and goes with its server: restarts ride it out as they do an outage of any target.
        kind = StorageError if verdict.labels.get("resource") == "disk" else SparkExtError
        found = kind(verdict.summary, **where, do=_advice(verdict, response)).labelled(verdict.labels["type"])
    return found.with_stack(evidence.text)


def _ours(evidence: Evidence) -> SparkExtError | None:
    """The error of this package that a worker has raised."""
    for raised in evidence.chain:
        if raised.code:
            return from_text(f"{raised.kind}: {raised.message}", marked=True)
    return None


def _special(verdict: Verdict, where: dict[str, str]) -> SparkExtError | None:
    if verdict.labels.get("cause") == "read-only disk":
        return StateError(
            "Spark could not write: Read-only file system",
            **where,
            do="mount the disk of the state directory writable, and run the job again",
        )
    if verdict.raised.condition == "STATE_STORE_CHECKPOINT_IDS_NOT_SUPPORTED":
        return ConfigurationError(
            "the state store of spark.sql.streaming.stateStore.providerClass does not support "
            "spark.sql.streaming.stateStore.checkpointFormatVersion 2",
            **where,
            do="leave the provider at RocksDBStateStoreProvider, as spark_ext.session() sets it; or set "
            "checkpointFormatVersion to 1, and start with a new state directory",
        )
    if verdict.labels.get("cause") == CHANGED:
        what = (
            "the query has another number of sources than its checkpoint"
            if verdict.type is FailureType.CHECKPOINT
            else "a stateful operator of the query differs from the one whose state is in the checkpoint, or a folder "
            f"of that state is gone ({verdict.raised.condition})"
        )
        return StateError(
            what,
            **where,
            do=f"restore the earlier definition or the folder; or discard the query's history with {RESET}",
        )
    return None


_ADVICE: Final[dict[FailureType, str]] = {
    FailureType.USER_CODE: "correct the function, and start the job again",
    FailureType.USER_DATA: "correct the row or the way it is read, and start the job again",
    FailureType.SERIALIZATION: "keep what cannot be serialized out of the function, such as by creating it inside, "
    "and start the job again",
    FailureType.CONFIGURATION: "correct the setting, and start the job again",
    FailureType.SOURCE: "restore what the source reads, and start the job again",
    FailureType.SINK: "restore the target, and start the job again",
    FailureType.NETWORK: "make the server reachable, and start the job again",
    FailureType.RESOURCE: "provide what was exhausted, or let epochs be smaller, and start the job again",
    FailureType.STATE: "restore the job from a checkpoint or savepoint with Job.restore(); without one, discard the "
    f"query's history with {RESET}",
    FailureType.CHECKPOINT: "restore the job from a checkpoint or savepoint with Job.restore(); without one, discard "
    f"the query's history with {RESET}",
    FailureType.FENCED: "make sure that only one start of the job runs",
    FailureType.CANCELED: "start the job again if this was not intended",
    FailureType.SYSTEM: "look at Spark's log, and start the job again",
}


def _advice(verdict: Verdict, response: Response) -> str:
    if verdict.labels.get("resource") == "disk":
        return (
            "free space where the state directory is and where Spark keeps temporary files (spark.local.dir), and run "
            "the job again"
        )
    if verdict.labels.get("cause") == LATE:
        return "end the executor or earlier driver that still writes state of this query, and run the job again"
    serial = f": {verdict.subject}" if verdict.subject else ""
    return f"{_ADVICE[verdict.type]}{serial}; the stack is in the job's incidents"
