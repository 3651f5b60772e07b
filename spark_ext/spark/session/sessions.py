"""Spark sessions that are ready for jobs: `session` creates one, `register` prepares one that was made elsewhere."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, overload

from spark_ext import errors, failpoints
from spark_ext.errors import EnvironmentProblem
from spark_ext.masking import logger
from spark_ext.spark.backend.contract import FILE_MANAGER, local_files
from spark_ext.spark.backend.kinds import backend_of, refuse_connect_requests
from spark_ext.spark.backend.process import (
    announced,
    has_jvm,
    installed_home,
    jvm_ended_with_its_start,
    master_of,
    quiet_accumulators,
    submitted_settings,
    without_boot_warning,
)
from spark_ext.spark.capabilities import capabilities
from spark_ext.spark.session import class_archive, environment, formats, object_stores, registry, short_errors
from spark_ext.spark.session.jars import delta_coordinate, delta_jars
from spark_ext.spark.session.session_settings import refuse_misspelled, set_defaults
from spark_ext.spark.session.spark_home import home_without_zip
from spark_ext.storage import StoreOptions
from spark_ext.worker_internals import pickle_by_value

if TYPE_CHECKING:
    from pyspark.sql import DataFrameReader, SparkSession
    from pyspark.sql.datasource import DataSource
    from pyspark.sql.streaming.readwriter import DataStreamReader

    from spark_ext.spark.session.connector import Connector

log = logger("spark_ext.session")

_LOCAL: Final = re.compile(r"local(\[[^\]]*\])?")
_PARTITIONS: Final = "spark.sql.shuffle.partitions"
_DELTA_CLASS: Final = "io.delta.tables.DeltaTable"  # exists on Databricks too, unlike the classes of the data source


def session(
    name: str,
    *,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    heap_dumps: str | Path | None = None,
    storage: Literal["s3"] | None = None,
    storage_options: Mapping[str, str] | None = None,
    short_lived: bool = False,
    remote: str | None = None,
) -> SparkSession:
    """A registered Spark session with everything that jobs need; the running session if there is one.

    From then on the interpreter shows errors of spark-ext without the frames of libraries; see `short_errors`.

    Args:
        name: the application's name.
        master: Spark master; default: the one of spark-submit or of PYSPARK_SUBMIT_ARGS, else the environment variable
            SPARK_MASTER, else `local[*]`.
        conf: Spark settings that override those of `conf/spark-defaults.conf`, and those given to spark-submit, which
            override these as well.
        heap_dumps: a folder into which a JVM, of the driver or of an executor, writes its heap when it has run out of
            it. It is made here; on other machines it has to be there. Has no effect on a JVM that runs already.
        storage: `s3` adds Hadoop's file system for S3, for checkpoints in a store with that interface; credentials are
            then looked for in the environment.
        storage_options: of object stores, as delta-rs names them, such as `aws_endpoint_url`; one that begins with
            `aws_` implies `storage="s3"`. They are in the environment of this process from now on, and in that of the
            workers, and are never written anywhere.
        short_lived: whether the driver's JVM is to start faster at the cost of its speed later, for runs of seconds to
            a few minutes: Java's first compiler alone, and one thread for its garbage. Has no effect on a JVM that
            runs already.
        remote: a server of Spark Connect, such as `sc://127.0.0.1:15002`: the session is a client's. Settings that a
            session cannot change are the server's matter, like the other arguments here: they are refused.

    Raises:
        ConfigurationError: Spark does not know a setting whose name is almost that of another one; the path of that
            folder has characters that an option of a JVM cannot have, or it cannot be made; a storage option
            is unknown or invalid, or this process has other ones.
        EnvironmentProblem: pyspark, Java, Delta's jar or the workers' Python is missing or unsuitable; the message
            says how to get it.
    """
    short_errors.install()
    if remote is not None:
        others = {"master": master, "heap_dumps": heap_dumps, "storage": storage, "storage_options": storage_options}
        return _client(name, remote, conf or {}, {**others, "short_lived": short_lived or None})
    refuse_connect_requests(conf or {})
    environment.require_pyspark()
    options = _storage(storage, storage_options)
    s3 = storage == "s3" or options.for_s3
    # Under spark-submit, or after an earlier session, the JVM is already running and only `register` can check it.
    if not has_jvm():
        environment.require_java()
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    submitted = submitted_settings()
    chosen = {**submitted, **(conf or {})}.get("spark.pyspark.python")
    python = chosen or os.environ.get("PYSPARK_PYTHON") or sys.executable
    environment.require_python(python)
    given = {**(conf or {})} if heap_dumps is None else _with_heap_dumps(conf or {}, heap_dumps)
    if short_lived:
        given = _with_options(given, "spark.driver.extraJavaOptions", class_archive.SHORT_LIVED)
    settings = _settings(master or master_of(submitted), given, python, submitted, s3=s3)
    builder = SparkSession.Builder().appName(name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        faster = _faster_workers(settings["spark.master"], python)
        with (
            announced("starting Spark", quiet=True),
            _environment(PYSPARK_PYTHON=python, **faster),
            without_boot_warning(),
            jvm_ended_with_its_start(),
        ):
            spark = builder.getOrCreate()
    except PySparkRuntimeError as problem:
        if problem.getCondition() != "JAVA_GATEWAY_EXITED":
            raise
        raise EnvironmentProblem(
            "Java exited right after it was started; its output is above",
            operator="the driver",
            kept="nothing was started",
            do="check the settings passed as conf, and that this is a full Java "
            f"{environment.MINIMUM_JAVA} or newer (with the module jdk.incubator.vector)",
        ) from problem
    quiet_accumulators()
    refuse_misspelled(spark, {**submitted, **(conf or {})})
    if _PARTITIONS not in settings:
        # A cluster's size is known only now. A query that was started before keeps the number from its checkpoint.
        set_defaults(spark, {_PARTITIONS: str(backend_of(spark).parallelism(spark))})
    if s3 or options:
        object_stores.use(spark, options, _STORAGE, s3=s3)
    register(spark)
    if s3:
        object_stores.check_store(spark, "s3://", _STORAGE)
    return spark


_OF_A_CLIENT: Final = ("spark.sql.streaming.", "spark.sql.session.", "spark.sql.execution.")  # defaults that it sets


def _client(name: str, remote: str, conf: Mapping[str, str], others: Mapping[str, object]) -> SparkSession:
    """A client's session of Spark Connect, with those of the defaults that a session can set."""
    for argument, value in others.items():
        if value is not None:
            raise errors.refused(
                f"{argument} has a value, and a client of Spark Connect cannot set it",
                "session, remote",
                f"leave {argument} out, and set it where the server is started",
                kept="nothing was started",
            )
    environment.require_pyspark()
    from spark_ext.spark.backend.connect import new_session

    spark = new_session(name, remote)
    parallelism = str(backend_of(spark).parallelism(spark))  # before all else: it fails if nobody answers
    ours = {key: value for key, value in defaults().items() if key.startswith(_OF_A_CLIENT)}
    set_defaults(spark, {key: value for key, value in {**ours, _PARTITIONS: parallelism}.items() if key not in conf})
    for key, value in conf.items():
        spark.conf.set(key, value)
    register(spark)
    return spark


_STORAGE: Final = "session, storage_options"


def _storage(storage: str | None, given: Mapping[str, str] | None) -> StoreOptions:
    if storage not in (None, "s3"):
        raise errors.refused(
            f"unknown storage '{storage}'",
            "session, storage",
            "use 's3', or leave it out and give the jar of another store's Hadoop file system in conf",
            kept="nothing was started",
        )
    return StoreOptions.of(given or {}, _STORAGE, kept="nothing was started")


# Paths that reach a JVM as they are, whatever splits the options on the way there.
_UNQUOTED: Final = re.compile(r"[^\s\"'\\$`;&|<>(){}*?!#]+")


def _with_heap_dumps(given: Mapping[str, str], folder: str | Path) -> dict[str, str]:
    who = "session, heap_dumps"
    place = str(Path(folder).expanduser().absolute())
    if _UNQUOTED.fullmatch(place) is None:
        raise errors.refused(
            f"the path {place!r} has characters that an option of a JVM cannot have",
            who,
            "choose a path without spaces, quotes and other characters that a shell understands",
            kept="nothing was started",
        )
    try:
        Path(place).mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as problem:
        raise errors.refused(
            f"the folder {place} cannot be made: {problem.strerror}",
            who,
            "choose a folder that can be written",
            kept="nothing was started",
        ) from None
    options = f"-XX:+HeapDumpOnOutOfMemoryError -XX:HeapDumpPath={place}"
    for key in ("spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions"):
        given = _with_options(given, key, options)
    return dict(given)


def _with_options(given: Mapping[str, str], key: str, options: str) -> dict[str, str]:
    """Settings with further options of a JVM, before the user's own, which therefore prevail."""
    return {**given, key: f"{options} {given.get(key, '')}".strip()}


# What Spark puts into the variables of a registered source whenever a planner of it starts, and again for each worker.
# All queries of a session share one map for a source, a plain `HashMap` that nothing guards: two planners that start at
# one time can add a key twice, and from then on no task that has this map can be read by an executor
# (`java.io.OptionalDataException`), until the session ends. Keys that are there already are never added.
_SET_BY_PLANNERS: Final = dict.fromkeys(
    ("SPARK_LOCAL_DIRS", "SPARK_AUTH_SOCKET_TIMEOUT", "SPARK_BUFFER_SIZE", "SPARK_PYTHON_RUNTIME"), ""
)


@overload
def read(spark: SparkSession, *, batch: Literal[True]) -> DataFrameReader: ...


@overload
def read(spark: SparkSession, *, batch: Literal[False] = False) -> DataStreamReader: ...


@overload
def read(spark: SparkSession, *, batch: bool) -> DataFrameReader | DataStreamReader: ...


def read(spark: SparkSession, *, batch: bool = False) -> DataFrameReader | DataStreamReader:
    """The reader of a session for streams, or for batch reads: one function defines the frames of both.

        def delays(spark, batch=False):
            flights = sx.read(spark, batch=batch).format("files").option("uid", "flights")...load()

    With `batch=True` every format that is bounded, or says where it ends now, has the rows that the first run of a
    job with `until="now"` would read; nothing is acknowledged. See `docs/batch.md`.

    Args:
        spark: a registered session.
        batch: whether the frames are batch frames.
    """
    return spark.read if batch else spark.readStream


def register(
    spark: SparkSession, *sources_or_sinks: type[Connector] | type[DataSource], require_delta: bool = True
) -> None:
    """Register the sources and sinks of spark-ext, and further ones, with a session. It may be called repeatedly.

    In a thread of its own, in which Spark has no active session and finds no format of Python's, it also makes this
    session the active one. Settings of the session that are costly for jobs are logged, once.

    The class registered last under a format name wins, in the session and in this process. No thread is started and no
    file is created. The workers get environment variables: the directory of the session registry (created by the first
    job that starts), the session's parallelism, and the mark of its workers' errors.

    Args:
        spark: any session: from `session`, a notebook, spark-submit, Databricks, or of Spark Connect.
        sources_or_sinks: further classes, such as the user's own: subclasses of `ChannelSource` or
            `TwoPhaseCommitSink`, or Spark's Python data sources.
        require_delta: whether to reject a session without Delta's jar. Jobs write their tables without it; it is
            needed only to read them with Spark.

    Raises:
        EnvironmentProblem: something is missing, and the message says what, and how to get it.
        ConfigurationError: a class is neither a source nor a sink, or lacks methods of its contract.
    """
    _check(spark, require_delta)
    connectors = [(kind, formats.data_source(kind)) for kind in (*formats.load(), *sources_or_sinks)]
    _set_environment(spark)
    _take_code_along(spark, {kind.__module__ for kind in sources_or_sinks})
    for kind, wrapped in connectors:
        formats.add(kind)
        spark.dataSource.register(wrapped)
    backend_of(spark).activate_if_none(spark)
    _advise(spark)


def _set_environment(spark: SparkSession) -> None:
    backend = backend_of(spark)
    # Spark copies the environment at each registration, so it is set first.
    workers = backend.environment(spark)
    workers.update(
        {
            registry.VARIABLE: workers.get(registry.VARIABLE) or str(registry.new_folder()),
            registry.PARALLELISM: str(backend.parallelism(spark)),
            **errors.for_workers(),
            **failpoints.for_workers(),
            **(_SET_BY_PLANNERS if backend.own_workers else {}),
        }
    )


def _take_code_along(spark: SparkSession, modules: set[str]) -> None:
    """Let Spark pickle the code of modules that a new Python process could not import, and of those that they use.

    That is a module beside the script, or on a path that only this process has. Workers of a local session start in
    this process's directory.
    """
    own, todo = set[str](), {name for name in modules if name in sys.modules}
    while todo:
        module = sys.modules[todo.pop()]
        package = sys.modules[module.__name__.partition(".")[0]]
        if package.__name__ in _INSTALLED or "-packages" in (getattr(package, "__file__", None) or "-packages"):
            continue
        own.add(module.__name__)
        used = (getattr(one, "__module__", None) or getattr(one, "__name__", None) for one in vars(module).values())
        todo |= {name for name in used if isinstance(name, str) and name in sys.modules} - own
    if own:
        local = backend_of(spark).own_workers and _LOCAL.fullmatch(str(spark.conf.get("spark.master", "")))
        packages = sorted({name.partition(".")[0] for name in own})
        asked = [sys.executable, "-c", _FIND, *packages]
        found = subprocess.run(asked, cwd=None if local else os.sep, capture_output=True, text=True, check=True)
        for name in found.stdout.split():
            pickle_by_value(sys.modules[name])


_INSTALLED: Final = sys.stdlib_module_names | {"__main__", "spark_ext"}
_FIND: Final = "import sys, importlib.util as u; print(*(name for name in sys.argv[1:] if u.find_spec(name) is None))"


# Settings that `session` changes: Spark's default, and what it costs a job.
_ADVISED: Final = {
    "spark.sql.shuffle.partitions": ("200", "each stateful epoch runs 200 tasks; twice the number of cores is enough"),
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider",
        "state is kept on the heap; RocksDBStateStoreProvider keeps it outside",
    ),
    "spark.sql.execution.arrow.maxBytesPerBatch": (
        "67108864",
        "the size of each row is added up; 2147483647 switches this off, and passing rows to Python is faster",
    ),
}
_advised: set[str] = set()  # applications that have been advised


def _advise(spark: SparkSession) -> None:
    """Say once which settings of a session that was not made by `session` are costly for jobs."""
    application = backend_of(spark).application_id(spark)
    found = [
        f"{key} is {value}: {words}"
        for key, (default, words) in _ADVISED.items()
        if (value := str(spark.conf.get(key, default))).removesuffix("b") == default
    ]
    if found and application not in _advised:
        log.warning("this session has settings of Spark's that are costly for jobs; %s", "; ".join(found))
    _advised.add(application)


def _check(spark: SparkSession, require_delta: bool) -> None:
    environment.require_spark_version(spark.version)
    environment.require_readable_plans()
    backend = backend_of(spark)
    java, python = backend.java_version(spark), backend.python(spark)
    if java is not None:
        environment.require_java_version(java, "the driver's JVM")
    if python is not None:
        environment.require_python(python)
    if not capabilities(spark.version).delta:
        log.warning("no Delta is for Spark %s yet: jobs write their tables, which deltalake reads", spark.version)
    elif require_delta and not backend.has_class(spark, _DELTA_CLASS):
        raise EnvironmentProblem(
            "Delta's jar is not on the class path; it is needed to read the job's tables with Spark",
            operator="the Spark session",
            kept="nothing was registered",
            do=f"set spark.jars.packages to {delta_coordinate(default='VERSION')} before the JVM starts, as "
            "spark_ext.session() does, or call register(spark, require_delta=False) and read the tables "
            "by other means",
        )


def _faster_workers(master: str, python: str) -> dict[str, str]:
    if _LOCAL.fullmatch(master) is None or python != sys.executable or has_jvm():
        return {}
    home = home_without_zip()
    return {} if home is None else {"SPARK_HOME": home}


def _settings(
    master: str, given: Mapping[str, str], python: str, submitted: Mapping[str, str] | None = None, *, s3: bool = False
) -> dict[str, str]:
    """All settings of a new session: those of the file, then those that depend on the machine, then the user's."""
    settings = _without_delta(defaults())
    local = _LOCAL.fullmatch(master) is not None
    if local:
        settings["spark.driver.bindAddress"] = settings["spark.driver.host"] = "127.0.0.1"
        settings[_PARTITIONS] = str(_cores(master))
        # The driver gives up an executor that was silent for two minutes, as on a laptop that has slept. A local one is
        # the driver itself: it cannot register again. It would end the JVM after 60 failed heartbeats, and so does one
        # whose session was stopped.
        settings["spark.storage.blockManagerHeartbeatTimeoutMs"] = "36500d"
        settings["spark.executor.heartbeat.maxFailures"] = "1000000"
    settings.update({key: value for key, value in (submitted or {}).items() if key in {*settings, _PARTITIONS}})
    settings["spark.master"] = master
    settings["spark.pyspark.python"] = settings["spark.pyspark.driver.python"] = python
    if s3:
        # `FileContext`, with which Spark begins, has no class for s3://; each look would end in a warning.
        settings[FILE_MANAGER] = local_files()
    settings.update(given)
    log4j = f"-Dlog4j2.configurationFile={_resource('log4j2.properties').as_uri()}"
    wanted = f"{given.get('spark.jars.packages', '')},{given.get('spark.jars', '')}"
    jars = [] if has_jvm() or "delta-spark" in wanted else [str(path) for path in delta_jars(settings)]
    if s3 and not has_jvm() and "hadoop-aws" not in wanted:
        jars += map(str, object_stores.s3_jars(settings))
    if jars:
        # A single process gets them on its class path, which saves the copy that spark.jars makes for executors.
        key, separator = ("spark.driver.extraClassPath", os.pathsep) if local else ("spark.jars", ",")
        settings[key] = separator.join(filter(None, [given.get(key, ""), *jars]))
    java = given.get("spark.driver.extraJavaOptions", "")
    shared = ""
    if local and not has_jvm():
        archive = class_archive.place(installed_home(), [Path(jar) for jar in jars])
        shared = class_archive.options(archive, java)
    settings["spark.driver.extraJavaOptions"] = " ".join(filter(None, [log4j, shared, java]))
    return settings


def _without_delta(settings: dict[str, str]) -> dict[str, str]:
    """Settings without Delta's classes, if no Delta is for the installed Spark."""
    import pyspark

    if capabilities(pyspark.__version__).delta:
        return settings
    return {key: value for key, value in settings.items() if ".delta." not in value}


def defaults() -> dict[str, str]:
    """The settings of `conf/spark-defaults.conf`, as shipped."""
    lines = (line.strip() for line in _resource("spark-defaults.conf").read_text().splitlines())
    pairs = (line.split(None, 1) for line in lines if line and not line.startswith("#"))
    return {key: value.strip() for key, value in pairs}


def _resource(name: str) -> Path:
    return Path(str(resources.files("spark_ext.conf") / name))


def _cores(master: str) -> int:
    """Number of cores that a local master uses: `local` 1, `local[4]` and `local[4,2]` 4, `local[*]` all."""
    match = re.fullmatch(r"local\[(\d+).*\]", master)
    if match:
        return int(match[1])
    return 1 if master == "local" else len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


@contextlib.contextmanager
def _environment(**variables: str) -> Iterator[None]:
    """Set environment variables temporarily: a new Spark context reads the workers' Python from one of them."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
