"""A job: a named set of streaming queries over one state directory, with a beginning and an end.

job = Job(spark, "flights", state="./state/flights")
job.add("daily-delays", delays.writeStream.format("delta_2pc").option("uid", "delays").option("path", "out/delays"))
result = job.run()
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from spark_ext.errors import ConfigurationError
from spark_ext.jobs.active_run import ActiveRun
from spark_ext.jobs.channel_state import channel_state
from spark_ext.jobs.checkpointing.savepoint_requests import check_folder
from spark_ext.jobs.composition import Composition, checked_job
from spark_ext.jobs.restoring.as_of import AsOf, as_of
from spark_ext.jobs.restoring.offline import savepoint_of_stopped
from spark_ext.jobs.restoring.rescale import rescale, rescale_exchange
from spark_ext.jobs.restoring.restore import restore, restore_after
from spark_ext.jobs.result import JobResult
from spark_ext.jobs.run_options import Emit, IfRunning, RunOptions, Until
from spark_ext.jobs.serving import JobClient, Serving
from spark_ext.jobs.starting.changing import forget, reset
from spark_ext.ledger import Ledger, LedgerFrames
from spark_ext.model.lifecycle import State
from spark_ext.model.pressure import DEFAULT
from spark_ext.observing.dumps import PATIENCE
from spark_ext.observing.job_incidents import UserIncidents
from spark_ext.queries.run import QueryRun
from spark_ext.steering.control import Control
from spark_ext.steering.reach import Reach
from spark_ext.views.notebook import LastIncident, job_html
from spark_ext.views.snapshot import JobSnapshot

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter
    from pyspark.sql.types import StructType
    from typing_extensions import Self

    from spark_ext.jobs.exchange import Exchange
    from spark_ext.jobs.inbox import Inbox, InboxServing
    from spark_ext.jobs.lookup import Lookup
    from spark_ext.jobs.starting.plan import JobPlan
    from spark_ext.jobs.widget import JobWidget
    from spark_ext.model.dag import JobGraph
    from spark_ext.server.server import Tls
    from spark_ext.views.plot.figure import JobFigure


class Job:
    """A set of streaming queries that start, end, fail and resume together.

    A query whose sources are all bounded ends by itself: it commits its last rows and windows, records its end and
    closes. A further run does nothing for it. A query with an unbounded source runs until `stop` or `drain`.

    Delivery: exactly once from channel sources to two-phase sinks, whatever crashes. A query with one of Spark's own
    sources or sinks has the guarantees of that source or sink.

    Args:
        spark: a session that `spark_ext.register` has seen.
        name: the job's name, kept in its state directory.
        state: path or object-store URI of the state directory; made when absent. It belongs to one job.
        takeover: start although another driver seems to run this job; that one is fenced off.
        settings: see `conf/job.yaml`.

    Raises:
        ConfigurationError: a bad name or setting, or an invalid file of failure rules or incidents.
        EnvironmentProblem: the session is of Spark Connect; the library that a setting or an incident listener needs is
            not installed; or the jar of the object store of the state directory is missing.
    """

    def __init__(
        self, spark: SparkSession, name: str, *, state: str | Path, takeover: bool = False, **settings: Any
    ) -> None:
        self.name = name
        self.settings, self.state_directory, registry = checked_job(spark, name, str(state), settings)
        self._spark = spark
        self._ledger = Ledger(self.state_directory)
        self._parts = Composition(spark, name, self.state_directory)
        self._active = ActiveRun(
            spark, name, self.state_directory, self._parts, self._ledger, self.settings, takeover=takeover
        )
        self._incidents = UserIncidents(name, registry, self._active.write_behind)

    # -- building -----------------------------------------------------------------------------------------------------

    def add(
        self,
        uid: str,
        query: DataStreamWriter | Callable[[], DataStreamWriter] | Callable[[Mapping[str, Any]], DataStreamWriter],
        *,
        after: str | Collection[str] = (),
        available_now: bool = False,
        renamed_from: str | None = None,
        accept: Collection[str] = (),
    ) -> Self:
        """Add a query.

        Args:
            uid: the query's stable name; its checkpoint is kept under it.
            query: `df.writeStream...`, without trigger, checkpoint location, `start` and `toTable`; or a function that
                returns it. One that needs an argument is given the query's configuration (`set_config`), a read-only
                mapping, and is called at each start. When a key changes that it has read, the query is built again and
                restarted between two epochs; keys that begin with `spark.sql.` are settings of its session.
            after: uids of queries that have to finish first. A function is then called when they have, as what they
                write may not be there before; until then the query counts in no state.
            available_now: the query ends with what is there when it starts, as `trigger(availableNow=True)` does; for
                Spark's own sources, which have no end. It is then SUSPENDED, and the next run continues.
            renamed_from: the uid that the query had before: it continues exactly where it was. May stay there.
            accept: options that may differ from the last start although they say what an operator reads from or writes
                to: `("orders.path",)` is the option `path` of the operator `orders`, `("daily.state",)` the stateful
                operators of the query `daily`. Remove it after the next start.

        Raises:
            ConfigurationError: a uid is missing or used twice, an option is unknown, the plan cannot be supervised, or
                something on the writer would be ignored; see `queries.writer_checks`.
        """
        self._active.refuse_started(f"query '{uid}'", "add all queries before start() or run()")
        self._parts.add(uid, query, after, available_now=available_now, renamed_from=renamed_from, accept=accept)
        return self

    def exchange(
        self,
        name: str,
        *,
        partitions: int = 16,
        key: str | Sequence[str] = (),
        kind: str | None = None,
        options: Mapping[str, object] = MappingProxyType({}),
        max_in_flight: int | str | None = DEFAULT,
        keep: str | int = 0,
        schema: StructType | str | None = None,
    ) -> Exchange:
        """Make an exchange: one query writes it (`write`), any number of others read it (`read`).

        Args:
            name: unique in the job; its data is kept under it.
            partitions: changed by `rescale` only; readers may be fewer or more.
            key: columns that decide to which partition a row goes; none: partitions are filled in turn.
            kind: how it is stored: `arrow`, files of a file system that driver and executors share; `delta`, a Delta
                table, which may be in an object store, and is slower; `kafka`, topics; or a kind of your own. None:
                what the exchange is already, or else the setting `exchange_kind`.
            options: of the kind. They are stored; a secret is named as `env:NAME`, `file:PATH` or `${NAME}`.
            max_in_flight: what the slowest consumer has not committed, beyond which the producer waits: a number of
                rows, or a size such as `"4 GiB"`. None: it never waits, and the exchange grows without a bound.
            keep: time for which rows are kept at least, ms or text such as `"1 day"`. Otherwise they are deleted when
                all queries that read the exchange have committed them.
            schema: of its rows, also as DDL text, if it is read before it is written.

        Raises:
            ConfigurationError: a bad or repeated name, or a bad setting.
        """
        self._active.refuse_started(f"exchange '{name}'", "make all exchanges before start() or run()")
        return self._parts.exchange(
            name,
            partitions=partitions,
            key=(key,) if isinstance(key, str) else tuple(key),
            kind=kind,
            options=options,
            default=(self.settings.exchange_kind, self.settings.exchange_options),
            max_in_flight=max_in_flight,
            keep=keep,
            schema=schema,
        )

    def inbox(
        self,
        name: str,
        *,
        schema: StructType | str | None = None,
        scheme: str = "",
        pointer: str = "",
        secrets: str | Sequence[str] = (),
        tokens: str | Path = "",
        on_bad_row: str = "quarantine",
        ack: str = "disk",
        persist: str = "continuous",
        dedup_window: str | int | None = None,
        max_bytes: str | int = 1 << 30,
        max_body: str | int = 1 << 20,
    ) -> Inbox:
        """Make an inbox: senders push events to it over HTTP, and queries of the job read them (`read`).

        Args:
            name: unique in the job; its gateways keep what they have accepted under it.
            schema: of events, also as DDL text: their JSON bodies become these columns. None: rows as they were sent.
            scheme: who sends, by which signatures are checked and identities found: `standard`, `stripe`, `github`,
                `shopify`, `slack`, `cloudevents`, `idempotency-key`, `pointer` or `sequence`. "": whatever identity
                a request has.
            pointer: for the scheme `pointer`, a JSON pointer to the identity in the body, such as `/id`.
            secrets: where each secret of the signatures is found, `env:NAME` or `file:PATH`: several while one is
                replaced by another.
            tokens: path of a token file; those with the scope `ingest` may send.
            on_bad_row: what is done about an event that does not fit the columns: `quarantine`, it is a bad row; or
                `reject`, its request is answered with 422.
            ack: what an answer promises: the gateway's `disk`, the object `store` or the `table` has the event; `none`:
                nothing.
            persist: when events are made durable: `continuous`, as they arrive; `checkpoint`, with the epoch that reads
                them.
            dedup_window: for how long a repeat is known, ms or text such as `"7 days"`; None: as long as the scheme's
                senders deliver again.
            max_bytes: of events that no query has committed, per gateway; further ones are answered with 429.
            max_body: of one request, decompressed.

        Raises:
            ConfigurationError: a bad or repeated name, or a bad setting.
        """
        self._active.refuse_started(f"inbox '{name}'", "make all inboxes before start() or run()")
        return self._parts.inbox(
            name,
            schema,
            scheme=scheme,
            pointer=pointer,
            secrets=secrets,
            tokens=str(tokens),
            on_bad_row=on_bad_row,
            ack=ack,
            persist=persist,
            dedup_window=dedup_window,
            max_bytes=max_bytes,
            max_body=max_body,
        )

    def lookup(
        self,
        name: str,
        path: str | Path,
        *,
        columns: Sequence[str] | None = None,
        key: str | Sequence[str] = (),
        max_bytes: str | int = "256 MB",
    ) -> Lookup:
        """Declare a lookup: a Delta table that joins and functions of queries use beside their rows.

        The first start fixes its newest version, which later starts keep; `job.control.reload(name)` replaces it. Each
        epoch has one version, also when it is repeated.

        A lookup whose table another query of the job writes is declared in the function of the query that uses it: its
        version is fixed when the function has been called.

        Args:
            name: unique in the job; the version in force is kept under it.
            path: of the table, local or in a store, for which the setting `storage_options` holds.
            columns: that are read; None: all that the version in force has when the lookup is declared.
            key: columns by which `get` finds a row; a version in which a key is repeated is refused.
            max_bytes: the most memory that a version may take in each Python worker; a larger one is refused.

        Raises:
            ConfigurationError: the table or a column does not exist, a name or size is malformed, or the job has
                declared it before in another way.
        """
        return self._parts.lookup(
            name,
            path=str(path),
            columns=None if columns is None else tuple(columns),
            key=(key,) if isinstance(key, str) else tuple(key),
            max_bytes=max_bytes,
        )

    def serve_inbox(
        self,
        name: str,
        *,
        gateway: str = "local",
        host: str = "127.0.0.1",
        port: int = 0,
        wal: str | Path | None = None,
        tokens: str | Path | None = None,
        tls: Tls | None = None,
        insecure: bool = False,
        allowed_hosts: Sequence[str] = (),
    ) -> InboxServing:
        """Accept events for an inbox of this job over HTTP, by a process of its own, until this process ends.

        In production gateways are started apart from the job, with `spark-ext ingest serve`, and outlive it.

        Args:
            name: of the inbox; the job has been started.
            gateway: its name: each gateway has its own log, and continues it.
            host: address to which it is bound. Other than loopback, it needs `tls`, or `insecure`.
            port: 0: any free one.
            wal: folder of its write-ahead log, on a local volume; None: in the inbox.
            tokens: a token file; None: that of the inbox, or one new token.
            tls: a certificate.
            insecure: whether an address other than loopback is allowed without TLS.
            allowed_hosts: further names under which it is called, such as that of a proxy.

        Returns:
            Its `url`, its `token` and `stop()`.

        Raises:
            ConfigurationError: the job has no such inbox, or was never started.
            StateError: the gateway could not be started; its message is on standard error.
        """
        given = {"--host": host, "--port": str(port), "--wal": wal, "--tokens": tokens}
        given |= {"--tls-cert": tls.certificate, "--tls-key": tls.key} if tls is not None else {}
        options = [part for option, value in given.items() if value is not None for part in (option, str(value))]
        options += [part for one in allowed_hosts for part in ("--allow-host", one)]
        return self._parts.inbox_of(name).serve(gateway, [*options, *(["--insecure"] if insecure else [])])

    def remove(self, uid: str) -> Self:
        """Abandon a query that has not finished: the job starts without it. What it has written stays where it is.

        Takes effect at the next start, and may stay there. Added again later, the query continues where it was, unless
        a restore in place has left it out meanwhile: then it is refused until it is reset.

        Raises:
            ConfigurationError: the query has been added.
        """
        self._parts.remove(uid)
        return self

    # -- running ------------------------------------------------------------------------------------------------------

    def run(
        self,
        *,
        until: Until | None = None,
        emit: Emit = "closed",
        if_running: IfRunning | None = None,
        wait_timeout: float | None = None,
        progress: bool = True,
    ) -> JobResult:
        """Start the job, wait for its end, and return its result.

        Ctrl-C stops it in order: no row is lost, nothing is emitted for the end of input. A second Ctrl-C exits at
        once; the next start cleans up.

        With `until="now"` every source, bounded or not, is read up to what it holds when the run begins, and the run
        ends; see the page "Run it every hour". The job is then SUSPENDED, and the next run continues.

        With the setting `on_damage="restore"` a job whose state is damaged is restored from its newest retained
        checkpoint and started again, once for each checkpoint.

        Args:
            until: "now", or None: the run ends when the input does.
            emit: with `until="now"`: "closed", windows that are open stay open for the next run; "early", they do,
                and are shown in targets with mode=upsert as they are now; or "all", they are emitted as they are, and
                the job has finished: no run reads anything after it.
            if_running: what is done while another run of the job is under way: "refuse", or "wait" until it has ended.
                With it, or `until`, a driver on another host counts as running as long as its heartbeat is recent.
            wait_timeout: how long it is waited for, s; None: as long as it takes.
            progress: show a live line on standard error: state, time, epochs, rows and channels.

        Raises:
            JobFailedError: a query has failed for good.
            JobRunningError: another run of the job is under way.
            ConfigurationError: with `until="now"`, a source always has more to read; with `emit="early"`, a row that is
                shown might not be replaced by a later one, or no query shows any.
            SparkExtError: the job could not be started.
        """
        how = RunOptions.of(self.name, until, emit, if_running, wait_timeout)
        recover = partial(restore_after, self.name, self.settings, self._ledger, lambda: self.runs, self.restore)
        return self._active.to_end(how, recover, progress=progress)

    def plan(self, *, until: Until | None = None, emit: Emit = "closed") -> JobPlan:
        """Find out what a start would refuse, change and read, without doing any of it: nothing is written.

        The job may run meanwhile; then that is one of the refusals. What only the claim of a target finds, such as
        epochs in it that the state does not know, is left to the start.

        Args:
            until: as for `run`.
            emit: likewise.

        Returns:
            The plan; `accepted` says whether there is nothing to object. `print` shows it, `to_json` has plain values.

        Raises:
            SparkExtError: the ledger cannot be read.
        """
        return self._active.plan(RunOptions.of(self.name, until, emit))

    def start(
        self, *, until: Until | None = None, if_running: IfRunning | None = None, wait_timeout: float | None = None
    ) -> Self:
        """Start all queries that have not finished, and return.

        Args:
            until: see `run`.
            if_running: likewise.
            wait_timeout: likewise.

        Raises:
            JobRunningError: another run of the job is under way.
            StateError: the state directory is another job's, or has lost a checkpoint.
            ConfigurationError: a target was refused; or a source always has more to read, with `until="now"`.
            SparkExtError: anything else that was refused before an epoch ran.
        """
        self._active.start(RunOptions.of(self.name, until, if_running=if_running, wait_timeout=wait_timeout))
        return self

    def await_termination(self, timeout: float | None = None) -> JobResult:
        """Wait for the job's end.

        Args:
            timeout: seconds; None: as long as it takes.

        Raises:
            JobFailedError: a query has failed for good.
            TimeoutError: it still runs.
        """
        return self._active.await_termination(timeout)

    def stop(self, timeout: float | None = None, *, savepoint: str | Path | None = None) -> JobResult:
        """Stop all queries where they are: nothing is emitted for the end of input, and a further run continues there.

        Whatever state the job is in, it has ended when this returns, and the result says each query's state. A query
        that has not ended in time, because one of its hooks, its target or Spark does not answer, is given up: it is
        CANCELED with that reason. Commits that it may still attempt are rejected once the job is started again.

        Args:
            timeout: seconds to wait; None: the setting `stop_timeout`. The last rows of the ledger may take a few
                seconds more.
            savepoint: path of a folder, empty or missing, into which a savepoint is written once the job has ended.

        Raises:
            ConfigurationError: the folder of the savepoint is not empty; the job continues.
            SparkExtError: the savepoint could not be taken; the job has ended, and `savepoint` may be called again.
        """
        return self._ended(partial(self._active.stop, timeout), savepoint)

    def drain(self, timeout: float | None = None, *, savepoint: str | Path | None = None) -> JobResult:
        """End the job in order: sources stop where they are, windows are emitted, the final checkpoint is taken.

        It is the end: the watermark is at the end of time, and a further run finds the job finished. A query with one
        of Spark's own sources is stopped after its current epoch; its open windows are not emitted. The drain is in
        force until the job has finished, also after a crash: a further run then completes it.

        Args:
            timeout: seconds to wait; None: as long as it takes. After that the job is stopped, and the result says
                which queries are CANCELED; the drain stays in force for the next start.
            savepoint: path of a folder, empty or missing, into which a savepoint is written once the job has ended. It
                is terminal: what is restored from it has finished.

        Raises:
            JobFailedError: a query has failed for good.
            ConfigurationError: the folder of the savepoint is not empty; the job continues.
        """
        return self._ended(partial(self._active.drain, timeout), savepoint)

    def _ended(self, end: Callable[[], JobResult], savepoint: str | Path | None) -> JobResult:
        folder = None if savepoint is None else check_folder(str(savepoint), self.name, self.state_directory)
        result = end()
        if folder is not None:
            self.savepoint(folder)
        return result

    # -- changing -----------------------------------------------------------------------------------------------------

    @cached_property
    def control(self) -> Control:
        """Changes the job: `job.control.pause()`, `.rate_limit("source:orders", 5000)`, `.set("threshold", 0.8)` ...

        Works before, during and after a run, once the job has been started for the first time: what stands is in force
        from its next start on. During a run a request is refused once a newer start owns the job (`FencedError`).
        """
        client = JobClient(self.state_directory, lambda: self._active.context)
        return Control.over(Reach(client, self.state_directory, Ledger(self.state_directory)))

    def serve(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        tokens: str | Path | None = None,
        tls: Tls | None = None,
        insecure: bool = False,
        allowed_hosts: Sequence[str] = (),
        show_token: bool = False,
    ) -> Serving:
        """Serve the job's control events over HTTP, from a thread of this process, until the run has ended.

        Call it before `start` or `run`, or during a run. Each job of a process has a server of its own; to serve many
        with one, or whether they run or not, use `spark-ext serve`.

        Args:
            host: address to which it is bound. Other than loopback, it needs `tls`, or `insecure`.
            port: 0: any free one.
            tokens: a token file, see `spark-ext token create`; None: one new token, which is valid for this server.
            tls: a certificate.
            insecure: whether an address other than loopback is allowed without TLS: tokens are then sent in the clear.
            allowed_hosts: further names under which it is called, such as that of a proxy.
            show_token: whether a new token, which allows everything, is printed on standard error, once.

        Returns:
            Its `url`, its `token` and `stop()`.

        Raises:
            ConfigurationError: the address or the token file cannot be used, or the address needs TLS.
            EnvironmentProblem: the extra `server` is not installed.
        """
        serving = Serving(
            self.name,
            self.state_directory,
            show_token=show_token,
            metrics=lambda: self._active.metrics,
            host=host,
            port=port,
            tokens=tokens,
            tls=tls,
            insecure=insecure,
            allowed_hosts=allowed_hosts,
        )
        self._active.serve(serving)
        return serving

    def reset(self, uid: str, reason: str = "", *, cascade: bool = False) -> None:
        """Discard a query's history: the next start reads all of its input again. Earlier output stays where it is.

        The job must not be running. The old checkpoint is kept beside the new one.

        Args:
            uid: the query.
            reason: who requested it, and why; kept in the ledger.
            cascade: reset all queries behind it as well: those that read, directly or not, the exchanges that it
                writes, and those that were built after it. What the exchanges hold is discarded.

        Raises:
            StateError: the job runs, or a checkpoint cannot be moved aside.
            ConfigurationError: the job never had such a query; or there are queries behind it, and no `cascade`.
        """
        self._active.refuse_running(f"query '{uid}'", "stop it, then reset")
        reset(self._parts, self._ledger, uid, reason, cascade=cascade)

    def forget(self, exchange: str, uid: str) -> None:
        """A source that read an exchange is not part of the job any more: what it has not read is released.

        The job must not be running.

        Raises:
            StateError: the job runs.
            ConfigurationError: the exchange is unknown, or the source never read it, or is in a query that is built.
        """
        self._active.refuse_running(f"exchange '{exchange}'", "stop it, then call forget")
        forget(self._parts, self._ledger, exchange, uid)

    def rescale(
        self, uid: str, partitions: int, timeout: float | None = None, *, key: str | Sequence[str] | None = None
    ) -> None:
        """Give the state of a query, or an exchange, another number of partitions; the job must not be running.

        Epochs that were interrupted are completed first: the job is started for them, and reads nothing beyond them.

        The rows in flight in an exchange are redistributed, each consumer continues where it stood, and rows of a
        key keep their order. After that, declare the exchange with these partitions and this key: a start refuses
        others. A rescale of an exchange that was interrupted is completed by the same call; until then the job cannot
        be started.

        Channels of sources need nothing of the kind, nor does the number of an exchange's readers.

        Args:
            uid: the query, or `exchange:` and the name of an exchange.
            partitions: of the query's state, or of the exchange.
            timeout: seconds for epochs that were interrupted; 0: refuse if there are any; None: as long as it takes.
            key: of the exchange: columns that decide to which partition a row goes; empty: partitions are filled in
                turn; None: the key that it has.

        Raises:
            ConfigurationError: the job has no such query or exchange; or the key has a column that the rows lack.
            StateError: the job runs; or the query has no state, an epoch that was not completed in time, or an operator
                whose state Spark cannot repartition. Of an exchange: the state directory is on an object store, or an
                interrupted epoch may be in a target that cannot be put back.
            SparkExtError: a start was needed and refused, or has failed.
        """
        kind, _, name = uid.rpartition(":")
        self._active.refuse_running(f"{kind or 'query'} '{name}'", "stop it, then rescale")
        memory = self._spark, self._parts, self._ledger, self.settings
        if kind == "exchange":
            rescale_exchange(*memory, name, partitions, (key,) if isinstance(key, str) else key, timeout)
        elif key is not None:
            raise ConfigurationError(
                "a key was given for the state of a query", operator=f"query '{uid}'", do="leave it out"
            )
        else:
            rescale(*memory, uid, partitions, timeout)

    # -- checkpoints --------------------------------------------------------------------------------------------------

    def checkpoint(self, timeout: float | None = None) -> int:
        """Take an aligned checkpoint: a barrier passes all queries, and nothing is in flight between them there.

        It waits for what the exchanges hold at this moment. The job continues meanwhile.

        Args:
            timeout: seconds to wait; None: as long as it takes, at most the setting `checkpoint_timeout`.

        Returns:
            Its number; its row in the ledger's `checkpoints` says how far each query had come, and `as_of` reads the
            outputs as they were.

        Raises:
            CheckpointError: it was refused, because a query does not run, or aborted.
            TimeoutError: it is not complete yet, and stays under way.
            StateError: the job has not been started.
        """
        return self._active.coordinator(starting=True).parts.aligned.request().wait(timeout)

    def savepoint(self, path: str | Path, *, aligned: bool = False, timeout: float | None = None) -> int:
        """Take a savepoint: a folder from which the job, or another one, continues exactly here.

        A job that runs continues to do so; one that has ended, in whatever way, is saved where it stands. Files are
        linked, not copied, where the folder is on the file system of the state directory.

        Args:
            path: of the folder; empty or missing. A local path or a URI.
            aligned: let a barrier pass all queries first, so that nothing is in flight between them. Otherwise the
                savepoint is taken at once, whatever the exchanges hold, and contains the rows in flight.
            timeout: seconds to wait; None: as long as it takes.

        Returns:
            The number of the checkpoint that it is.

        Raises:
            CheckpointError: no cut is consistent now, or Spark has deleted a file of it meanwhile.
            ConfigurationError: the folder is not empty, or in the state directory.
            StateError: the job was never started, or has a state that cannot be restored from.
            TimeoutError: it is not complete yet, and stays under way.
        """
        folder = check_folder(str(path), self.name, self.state_directory)
        running = self._active.running
        if running is None:
            return savepoint_of_stopped(self._spark, self._parts, self._ledger, folder)
        return (running.parts.aligned if aligned else running.parts.savepoints).request(folder).wait(timeout)

    def restore(
        self,
        savepoint: str | Path | int,
        *,
        accept_duplicates: Collection[str] = (),
        state_partitions: Mapping[str, int] | None = None,
    ) -> Self:
        """Continue from a savepoint: the next start begins there. Call it after all queries were added.

        In the state directory of the job that it was taken of, the restore is in place: outputs of `delta_2pc` and
        exchanges are put back to what they held then. In an empty state directory the job becomes another one, whose
        sinks write elsewhere; in one Spark session only one of the two can run.

        A restore that was interrupted is repeated with the same call; until then the job cannot be started.

        Args:
            savepoint: path or URI of its folder; or the number of a retained checkpoint.
            accept_duplicates: uids of sinks whose targets cannot be put back: what they received after the savepoint
                stays there, and is written again.
            state_partitions: by query, the number of partitions that its state is to have.

        Raises:
            StateError: the savepoint is missing, not complete, damaged or another job's; the job runs; a query of it is
                not in the job; or a target is not what it was.
            ConfigurationError: a target cannot be put back, or the job has changed in a way that it cannot continue.
        """
        self._active.refuse_running("restore", "stop it, then restore")
        restore(self._spark, self._parts, self._ledger, savepoint, accept_duplicates, state_partitions or {})
        return self

    def as_of(self, checkpoint: int) -> AsOf:
        """The outputs as they were at an aligned checkpoint: all reflect the same input rows.

        Args:
            checkpoint: its number.

        Raises:
            CheckpointError: the checkpoint is unknown, or not aligned.
        """
        return as_of(self._spark, self.name, self._ledger, checkpoint, self._parts.specs)

    # -- incidents and dumps ------------------------------------------------------------------------------------------

    def report_incident(
        self, type: str, what: str, query: str | None = None, labels: Mapping[str, str] | None = None
    ) -> str:
        """Report an incident of a type of your own; safe for several threads, and does not wait for anything.

        Equal incidents of one type and query within the type's window are one, which is counted. It is resolved by the
        next committed epoch of the query (without one, of any query), by the end of the query, or, if its type says
        `resolved: report`, by `resolve_incident`.

        Args:
            type: declared in the file that the setting `incidents` names.
            what: what happened; its first line is shown in lists. Numbers in it do not make it another incident.
            query: uid of the query; None: the whole job.
            labels: by name; further texts by which it can be found.

        Returns:
            The incident's id: that of an earlier one if it is the same.

        Raises:
            ConfigurationError: the type is not declared, or the job has no such query; nothing was reported.
            StateError: the job does not run.
        """
        return self._incidents.report(type, what, query, labels or {}, self._parts.uids)

    def resolve_incident(self, incident_id: str, cause: str = "") -> bool:
        """Say that an incident of yours is over.

        Args:
            incident_id: as `report_incident` has returned it, in this start of the job or an earlier one.
            cause: why; shown with the incident.

        Returns:
            Whether it was open.

        Raises:
            ConfigurationError: it is not an incident of a type of yours.
            StateError: the job does not run.
        """
        return self._incidents.resolve(incident_id, cause)

    def last_incident(self) -> LastIncident | None:
        """The newest incident of the newest start in this process; None before the first one."""
        return self._active.last_incident()

    def dump(self, why: str = "on request", *, heap: bool = False, timeout: float = PATIENCE) -> str:
        """Write the stacks of all processes of the running job into its state directory, whatever its setting `dumps`.

        The text has the threads of the driver's Python process, of its JVM and of executors, and the Python workers of
        the queries. As many dumps are kept as `dumps_kept` and `dumps_size` say. Safe for several threads.

        Args:
            why: the first line of the text.
            heap: whether the heap of the driver's JVM is written as well. The JVM stands still meanwhile, and no secret
                in the heap is masked.
            timeout: how long to wait, s.

        Returns:
            The path or URI of the dump's folder: `dumps/...` in the state directory.

        Raises:
            StateError: the job does not run.
            ConfigurationError: a heap cannot be written into a state directory on an object store.
            StorageError: it could not be written, or does not fit on the disk.
            TimeoutError: it is not complete yet.
        """
        return self._active.dump(why, heap=heap, timeout=timeout)

    # -- looking ------------------------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """What it does: the least advanced state of its queries that have not ended; see the page on operations."""
        return self._active.state

    @property
    def runs(self) -> tuple[QueryRun, ...]:
        """The queries under supervision, for display."""
        return self._active.runs

    @property
    def done(self) -> bool:
        """Whether the job has ended."""
        return self._active.done

    def wait(self, seconds: float) -> bool:
        """Wait for the end at most this long; returns whether it has come."""
        return self._active.wait(seconds)

    def snapshot(self) -> JobSnapshot:
        """What the job looks like now: states, epochs, rows, sources. Does not wait for anything."""
        return self._active.snapshot()

    @property
    def graph(self) -> JobGraph:
        """How the queries that have been added are linked: `edges()`, and `layout()` for a picture.

        Raises:
            ConfigurationError: the queries form a cycle, or an exchange is written by no query or by two.
        """
        return self._parts.graph(self._parts.specs, self._parts.gates)

    @property
    def ledger(self) -> LedgerFrames:
        """The job's tables as DataFrames: `job.ledger.finished()`, `.epochs()`, `.checkpoints()`, `.incidents()`."""
        return LedgerFrames(self._ledger, self._spark, channel_state)

    def widget(self) -> JobWidget:
        """A widget for a notebook: state, rows, epochs, lag, channels and the last incident, refreshed each second.

        It follows the job while it is displayed and the job has not ended; make it before `run`, or after `start`.

        Returns:
            The widget; a notebook shows it when it is the last value of a cell.

        Raises:
            EnvironmentProblem: the extra `notebook` is not installed.
        """
        from spark_ext.jobs.widget import JobWidget

        return JobWidget(self)

    def plot(self, *kinds: str) -> JobFigure:
        """The job's epochs, lag and channels as a figure of matplotlib, from its ledger.

        The last rows of the ledger may be missing for a second or two while the job runs.

        Args:
            kinds: `epochs`, `lag`, `channels`; nothing: all of them that have data.

        Returns:
            The figure, which a notebook shows; `savefig(path)` writes it.

        Raises:
            ConfigurationError: a kind is unknown.
            EnvironmentProblem: the extra `plot` is not installed.
            StateError: the job has never been started.
            StorageError: its ledger cannot be read.
        """
        from spark_ext.views.plot.job import figure_of

        return figure_of(self.state_directory, kinds, f"job '{self.name}', plot")

    def __repr__(self) -> str:
        snapshot = self.snapshot()
        queries = ", ".join(f"{query.uid} {query.state.value}" for query in snapshot.queries)
        return f"<Job {self.name} {snapshot.state.value}: {queries}>"

    def _repr_html_(self) -> str:
        return job_html(self.snapshot())
