"""What a start would do, found without doing it: the part of a start that only reads, and a plan made of it.

`examined` is the first half of each start, which then writes down and claims; `plan_job` ends with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from spark_ext.control.functions import misfit
from spark_ext.control.job_events import in_force
from spark_ext.errors import ConfigurationError, JobRunningError, SparkExtError, StateError, TransientError
from spark_ext.exchange.kinds import parts
from spark_ext.failures.classifier import load
from spark_ext.failures.labels import FailureType
from spark_ext.jobs.starting.flow import check_followers, check_now, checked_graph, inbox_links, links_of, opened
from spark_ext.jobs.starting.recorded_past import compared, refuse_half_rescaled
from spark_ext.ledger.incarnation import NextStart, refuse_start
from spark_ext.ledger.memory import JobMemory
from spark_ext.ledger.schema import JobRow
from spark_ext.ledger.view import SourceView
from spark_ext.model.changes import compare
from spark_ext.model.commits import Claim, not_the_target
from spark_ext.model.control import JOB
from spark_ext.model.offsets import SourceOffset
from spark_ext.model.query_offsets import source_offsets
from spark_ext.queries import operators
from spark_ext.queries.describe_failure import diagnosed
from spark_ext.queries.early import check_early
from spark_ext.queries.operator_hooks import OperatorHooks
from spark_ext.sinks.runtime.position import remembered
from spark_ext.sources.aligned import AlignedSource
from spark_ext.sources.runtime.planner import NoLedger, Planner
from spark_ext.spark.backend.kinds import backend_of
from spark_ext.spark.logs.spark_log import SparkLog
from spark_ext.storage import folder_at, local_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_ext.jobs.composition import Composition, Gate
    from spark_ext.jobs.linking.exchanges import Link
    from spark_ext.jobs.linking.inboxes import InboxLink
    from spark_ext.jobs.starting.identity import Start
    from spark_ext.ledger import Incarnation, Ledger
    from spark_ext.model.configuration import Configuration
    from spark_ext.model.dag import JobGraph
    from spark_ext.queries.describe_failure import Diagnosis
    from spark_ext.queries.spec import OperatorSpec, QuerySpec
    from spark_ext.settings import JobSettings

R = TypeVar("R")


@dataclass(frozen=True)
class StartOptions:
    """How a job is to be started."""

    takeover: bool = False  # start although another driver seems to run this job
    hold: bool = False  # complete the epochs that were interrupted, and plan no others
    until_now: bool = False  # read what is there, and end
    early: bool = False  # show open windows at the end of such a run
    drain: bool = False  # request a drain before anything is started
    other_hosts: bool = False  # refuse also while a driver on another host is alive, by its heartbeat


@dataclass(frozen=True)
class Examined:
    """A job beside its past. Nothing was written for it."""

    specs: tuple[QuerySpec, ...]  # the queries that can be built now
    gated: tuple[Gate, ...]  # those that wait for others
    graph: JobGraph
    links: tuple[Link, ...]
    inboxes: tuple[InboxLink, ...]
    start: Start | None  # compared with the last start; None: it is not to continue anything


def examined(
    composition: Composition,
    memory: JobMemory,
    ledger: Ledger,
    configuration: Configuration,
    coming: Incarnation | NextStart,
    options: StartOptions,
    *,
    halted: bool,
) -> Examined:
    """Build the queries, and refuse what cannot be built, linked or compared."""
    until_now = options.until_now
    holds = until_now and (options.drain or bool(in_force(ledger.open_control_events(), "drain")))
    specs, gated = opened(composition, memory, coming.number, configuration, holds=holds)
    if until_now:
        for spec in specs:
            check_now(spec, composition.job)
    if options.early:
        check_early(specs, composition.job, waiting=bool(gated))
    graph = checked_graph(composition, specs, gated, memory)
    links = links_of(composition, specs, waiting=bool(gated))
    inboxes = inbox_links(composition, specs)
    start = None
    if not halted:
        start = compared(
            composition.job, memory, ledger, specs, composition.declared, coming, gated, early=options.early
        )
    return Examined(tuple(specs), tuple(gated), graph, tuple(links), tuple(inboxes), start)


def refuse_missing_targets(specs: Iterable[QuerySpec], start: Start, job: str) -> None:
    """Refuse queries that have committed epochs to a table or folder that is gone.

    A claim would find it too, but comes only if there is something to write. In an object store, where the look could
    be long and needs the sink's credentials, it is left to the claim.
    """
    for spec in specs:
        known, logged, sink = start.memory.of(spec.uid), start.logs.get(spec.uid), spec.sink
        if sink is None or known.finished or logged is None or sink.format not in _KEEP_FILES:
            continue
        last = remembered(logged.checkpoint)
        epoch = last and last.of(sink.uid, known.lineage, logged.query_id)
        before = known.definition
        moved = before and any(one.uid == sink.uid for one in compare(spec.uid, before, start.given[spec.uid]))
        if epoch is not None and not moved and local_path(_path_of(sink) or "") and _is_missing(sink):
            raise not_the_target(
                f"epoch {epoch} was committed to it, and nothing is there",
                f"job '{job}', query '{spec.uid}', sink '{sink.uid}' ({sink.format})",
            )


def refuse_misfits(start: Start, configuration: Configuration, job: str) -> None:
    """Refuse queries that cannot read what is set: a changed query may read a key as another type than before."""
    for uid, definition in start.given.items():
        values = {} if start.memory.of(uid).finished else configuration.user(uid)
        for key, kind in definition.reads:
            declared = configuration.has("config_schema", JOB, key)
            wrong = misfit(values[key], kind) if key in values and not declared else ""
            if wrong:
                raise ConfigurationError(
                    f"the value of the key '{key}' is {str(values[key])[:100]!r}, and the query reads it as {kind}: "
                    f"{wrong}",
                    operator=f"job '{job}', query '{uid}'",
                    kept="nothing was started",
                    do="change the type in the query; or unset the key (spark-ext control STATE unset KEY), start the "
                    "job, and set the key then",
                )


def refuse_followers(found: Examined, memory: JobMemory, drained: int, job: str) -> None:
    """Refuse queries that would wait for ever. `drained` is the newest lineage for which a drain is in force."""
    known = ((spec, memory.of(spec.uid)) for spec in found.specs)
    check_followers([spec for spec, one in known if not one.finished and one.lineage > drained], found.graph, job)


_KEEP_FILES: Final = ("delta_2pc", "files_2pc")  # whose targets have a file from the claim on
_KINDS: Final = {  # which of our errors says that a start has failed; for any other type, the base of all
    FailureType.CONFIGURATION: ConfigurationError,
    FailureType.NETWORK: TransientError,
    FailureType.STATE: StateError,
    FailureType.CHECKPOINT: StateError,
}


def refusal_of(job: str, failure: Exception, found: Diagnosis) -> SparkExtError:
    """The failure of a start as one of our errors."""
    if isinstance(failure, SparkExtError):
        return failure
    if any(raised.code for raised in found.evidence.chain):
        return found.error.within(f"job '{job}'")
    return _KINDS.get(found.verdict.type, SparkExtError)(
        f"the job could not be started: {found.verdict.summary}",
        operator=f"job '{job}'",
        kept="all committed epochs",
        do=found.error.do,
    ).with_stack(found.error.stack)


# -- a plan -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class SourcePlan:
    """What a start would read of a source, as it is now."""

    uid: str
    format: str
    reads: Mapping[str, str]  # what it reads from, by option; secrets are masked
    new: int | None  # channels that no epoch has begun; None: not known before the start
    running: int  # channels that are begun and have not ended
    rows: int | None  # rows that are still to be read; None: the source does not know


@dataclass(frozen=True, kw_only=True)
class QueryPlan:
    """What a start would do with a query."""

    uid: str
    action: str
    """`begins`, `continues`, `finished` (nothing is started) or `waits` for the end of others."""
    epoch: int | None = None  # the newest committed one; None: none
    changes: tuple[str, ...] = ()  # what is different from the last start
    writes: Mapping[str, str] = field(default_factory=dict)  # what it writes to, by option; secrets are masked
    creates: bool = False  # whether nothing is at the target's path yet
    sources: tuple[SourcePlan, ...] = ()


@dataclass(frozen=True, kw_only=True)
class JobPlan:
    """What a start of a job would refuse, change and read. Nothing was written for it."""

    job: str
    state_directory: str
    incarnation: int  # the number that the start would take
    refusals: tuple[SparkExtError, ...]  # why the start would be refused, or a query could not read; none: it would not
    notices: tuple[str, ...] = ()  # what the start would say, and not refuse
    queries: tuple[QueryPlan, ...] = ()
    exchanges: Mapping[str, bool] = field(default_factory=dict)  # by name, whether the start would create it

    @property
    def accepted(self) -> bool:
        """Whether there is nothing to object."""
        return not self.refusals

    def to_json(self) -> dict[str, Any]:
        """Plain values, for `--json`."""
        return {
            "job": self.job,
            "state_directory": self.state_directory,
            "accepted": self.accepted,
            "incarnation": self.incarnation,
            "refusals": [
                {"code": one.code, "what": one.what, "at": one.operator, "do": one.do} for one in self.refusals
            ],
            "notices": list(self.notices),
            "queries": [
                {**vars(query), "changes": list(query.changes), "writes": dict(query.writes)}
                | {"sources": [{**vars(source), "reads": dict(source.reads)} for source in query.sources]}
                for query in self.queries
            ],
            "exchanges": [{"name": name, "creates": new} for name, new in self.exchanges.items()],
        }

    def __str__(self) -> str:
        count = len(self.refusals)
        would = f"would be refused: {count} objection{'' if count == 1 else 's'}" if count else "would be accepted"
        lines = [f"job '{self.job}', {self.state_directory}: start {self.incarnation} {would}"]
        for query in self.queries:
            lines += _query_lines(query)
        lines += [f"  exchange '{name}': is created" for name, new in self.exchanges.items() if new]
        lines += [f"  note: {notice}" for notice in self.notices]
        return "\n".join([*lines, *map(str, self.refusals)])


def _query_lines(query: QueryPlan) -> list[str]:
    behind = "" if query.epoch is None else f" behind epoch {query.epoch}"
    target = " ".join(f"{name}={value}" for name, value in query.writes.items())
    makes = ", which is created" if query.creates else ""
    lines = [f"  {query.uid}: {query.action}{behind}" + (f"; writes {target}{makes}" if target else "")]
    for source in query.sources:
        counts = [
            "new channels are not known before the start" if source.new is None else f"{source.new:,} new channels",
            f"{source.running:,} running",
            "rows unknown" if source.rows is None else f"{source.rows:,} rows to read",
        ]
        lines.append(f"    reads {source.uid} ({source.format}): {', '.join(counts)}")
    return [*lines, *(f"    changed: {change}" for change in query.changes)]


def plan_job(
    spark: SparkSession, ledger: Ledger, composition: Composition, settings: JobSettings, options: StartOptions
) -> JobPlan:
    """Find out what a start would do. Raises only if the ledger cannot be read."""
    job, backend, classifier = composition.job, backend_of(spark), load(settings.failures)
    refusals: list[SparkExtError] = []

    def tried(step: Callable[[], R]) -> R | None:
        try:
            return step()
        except Exception as problem:
            refusals.append(refusal_of(job, problem, diagnosed(problem, f"job '{job}'", -1, classifier)))
        return None

    past = ledger.table(JobRow).rows()
    coming = NextStart.of(past, ledger.uri)
    tried(
        lambda: refuse_start(
            ledger,
            job,
            past,
            takeover=options.takeover,
            application_id=backend.application_id(spark),
            other_hosts=options.other_hosts,
        )
    )
    found = None
    if all(isinstance(one, JobRunningError) for one in refusals):  # else the ledger cannot be relied on
        found = tried(lambda: _examined(composition, ledger, coming, options))
    if found is None or found.start is None:
        return JobPlan(job=job, state_directory=ledger.uri, incarnation=coming.number, refusals=tuple(refusals))
    start = found.start
    refusals += start.problems()
    tried(lambda: refuse_missing_targets(found.specs, start, job))
    tried(lambda: refuse_misfits(start, composition.stored_configuration(), job))
    if not options.until_now:
        drained = max((one.lineage for one in in_force(ledger.open_control_events(), "drain")), default=0)
        tried(lambda: refuse_followers(found, start.memory, drained, job))
    queries = []
    for spec in found.specs:
        if not start.memory.of(spec.uid).finished:
            tried(partial(OperatorHooks.check, spec))
        queries.append(_query(spec, start, ledger, tried, surveys=backend.own_workers))
    running = bool(refusals)
    for spec in found.specs if all(isinstance(one, JobRunningError) for one in refusals) else ():
        if spec.sink is not None and not start.memory.of(spec.uid).finished:
            claim = _claim(spec.sink.uid, spec.uid, start, ledger.uri, coming, running=running)
            tried(partial(OperatorHooks.check_claim, spec, claim))
    queries += [QueryPlan(uid=gate.uid, action="waits") for gate in found.gated]
    created = {link.name: tried(partial(_is_new, link, f"job '{job}', exchange '{link.name}'")) for link in found.links}
    return JobPlan(
        job=job,
        state_directory=ledger.uri,
        incarnation=coming.number,
        refusals=tuple(refusals),
        notices=tuple(f"query '{one.query}': {one.what} ({one.action})" for one in start.notices()),
        queries=tuple(queries),
        exchanges={name: new for name, new in created.items() if new is not None},
    )


def _examined(composition: Composition, ledger: Ledger, coming: NextStart, options: StartOptions) -> Examined:
    memory = JobMemory.read(ledger)
    refuse_half_rescaled(composition.job, ledger.uri, memory, composition.uids)
    configuration = composition.stored_configuration()
    return examined(composition, memory, ledger, configuration, coming, options, halted=False)


def _query(
    spec: QuerySpec, start: Start, ledger: Ledger, tried: Callable[[Callable[[], Any]], Any], *, surveys: bool
) -> QueryPlan:
    known, logged = start.memory.of(spec.uid), start.logs.get(spec.uid)
    epoch = max(known.committed, -1 if logged is None else logged.committed)
    before = known.definition
    changes = compare(spec.uid, before, start.given[spec.uid]) if before is not None else ()
    sink, sources, offsets = spec.sink, [], {}
    if logged is not None and logged.committed >= 0:
        # What is planned and not committed is read again.
        at = SparkLog(logged.checkpoint).offsets(logged.committed)
        offsets = {} if at is None else source_offsets(at)
    for source in () if known.finished else spec.sources:
        offset = offsets.get(source.uid, SourceOffset(source.uid))
        view = _Flags(
            SourceView(ledger.uri, source.uid, known.lineage, query=spec.uid, storage_options=ledger.storage_options)
        )
        found = tried(partial(_survey, source, offset, view)) if surveys else None
        new, rows = found or (None, None)
        reads = operators.identity(source.format, source.options)
        sources.append(
            SourcePlan(
                uid=source.uid, format=source.format, reads=reads, new=new, running=len(offset.running), rows=rows
            )
        )
    return QueryPlan(
        uid=spec.uid,
        action="finished" if known.finished else "continues" if start.begun(spec.uid) else "begins",
        epoch=epoch if epoch >= 0 else None,
        changes=tuple(map(str, changes)),
        writes={} if sink is None else operators.identity(sink.format, sink.options),
        creates=sink is not None and bool(tried(partial(_is_missing, sink))),
        sources=tuple(sources),
    )


def _claim(sink: str, query: str, start: Start, state: str, coming: NextStart, *, running: bool) -> Claim:
    """The claim of a start. While another run commits epochs, only the owner of the target can be checked."""
    claim = Claim(sink, start.job, coming.job_id, coming.number, start.memory.lineage(query), state)
    logged = start.logs.get(query)
    if running or logged is None or query in start.exchanged():
        return claim
    last = remembered(logged.checkpoint)
    return replace(
        claim,
        query_id=logged.query_id,
        planned=logged.planned,
        previous=None if last is None else last.of(sink, claim.lineage, logged.query_id),
        starts=coming.starts,
    )


def _is_new(link: Link, operator: str) -> bool:
    return parts(link.kind, link.path, operator, link.options).master.describe() is None


def _path_of(sink: OperatorSpec) -> str | None:
    return {name.lower(): value for name, value in sink.options.items()}.get("path")


def _is_missing(sink: OperatorSpec) -> bool:
    path = _path_of(sink)
    return path is not None and not folder_at(path).names()


class _Flags(NoLedger):
    """The finished channels that the ledger knows, and nothing else of it."""

    def __init__(self, view: SourceView) -> None:
        self._view = view

    def finished_channels(self, upto: int) -> Iterable[str]:
        """Ids of the channels whose finish has a sequence of at most `upto`."""
        return self._view.finished_channels(upto).keys()


def _survey(spec: OperatorSpec, at: SourceOffset, view: _Flags) -> tuple[int | None, int | None]:
    """How many channels a source would begin, and how many rows it would read; None: not known without the job."""
    source = operators.source(spec.format, spec.options)
    if source.only_in_jobs or isinstance(source, AlignedSource):
        return None, None
    planner = Planner(source, None, view)
    return planner.survey(at)
