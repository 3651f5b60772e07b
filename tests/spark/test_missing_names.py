"""A Spark that lacks one of the private names costs what needs that name, by name, and no more."""

import itertools
import re
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_ext import with_watermark
from spark_ext.errors import EnvironmentProblem, SparkExtError
from spark_ext.spark.backend import process
from spark_ext.spark.backend.classic import CLASSIC
from spark_ext.spark.backend.contract import FILE_MANAGER
from spark_ext.spark.backend.failures import classify, evidence_of
from spark_ext.spark.backend.listeners import listening, wrapped
from spark_ext.spark.backend.missing import by_name
from spark_ext.spark.backend.private_names import DRIVER, JVM
from spark_ext.spark.backend.state import StateStores, StateVersion
from spark_ext.spark.logs.spark_log import SparkLog
from tests.spark.test_stateful_operators import CHANGES, TEXTS, aggregated, rows
from tests.support.jobs import JobHarness, expected
from tests.support.missing_names import MissingNames, Name, absent
from tests.support.stateful import KINDS, add_files, run

FEATURES = {feature: {**DRIVER.get(feature, {}), **JVM.get(feature, {})} for feature in (*DRIVER, *JVM)}
VITAL = ("everything", "plans", "watermarks", "writers", "sessions", "queries", "events of queries")
"""Without these the job's query cannot be started, or be known to have ended."""

OTHERS = ("state's definition", "Spark Connect", "failures", "state that is loaded", "savepoints of state", "rescale")
"""Features with a test of their own."""

UNASKED = {
    "_jlistener": "pyspark asks for it",
    "_set_spark_session": "pyspark asks for it",
    "writeStream": "by pyspark's own property",
    "launch_gateway": "in a program of its own",
    "completionTime": "an index of Spark's status store",
    "info": "in JSON",
    "sqlExecutionId": "in JSON",
    "groupingAttributes": "of Scala's operator: the same as that of pandas",
    "timeout": "of Scala's operator: the same as that of pandas",
    "stateStoreCoordinator": "with what is loaded of state",
    "runId": "with what is loaded of state",
}


def named(*features: str) -> list[Name]:
    """The names of some features, and the classes that have them, in the installed Spark."""
    return [
        (owner, name)
        for feature in features
        for owner, text in FEATURES[feature].items()
        for name in ["", *sorted({*text.split()} - absent(owner, text))]
    ]


ALL = [
    (feature, owner, name)
    for feature, owners in FEATURES.items()
    for owner, text in owners.items()
    for name in (*text.split(), re.split(r"[.$]", owner.rstrip("$"))[-1])
]


def test_what_needs_a_name_is_refused_by_it() -> None:
    """As pyspark and py4j say it, for each name and class of the lists."""
    said: list[tuple[type[Exception], str]] = [
        (AttributeError, "'SparkContext' object has no attribute '{}'"),
        (AttributeError, "[ATTRIBUTE_NOT_SUPPORTED] Attribute `{}` is not supported."),
        (ImportError, "cannot import name '{}' from 'pyspark.x'"),
        (
            Py4JError,
            "An error occurred while calling o1.{0}. Trace:\npy4j.Py4JException: Method {0}([]) does not exist",
        ),
        (Py4JError, "org.apache.spark.{} does not exist in the JVM"),
        (Py4JError, "java.lang.NoSuchFieldException: {}"),
        (Py4JError, "java.lang.ClassNotFoundException: org.apache.spark.{}"),
    ]
    for feature, _, name in ALL:
        for kind, text in said:
            with pytest.raises(EnvironmentProblem, match=rf"has no '{re.escape(name)}' for: .*{re.escape(feature)}"):
                by_name(_raise)(kind(text.format(name)))


def _raise(problem: Exception) -> None:
    raise problem


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch, spark: SparkSession) -> MissingNames:
    return MissingNames(monkeypatch)


def told(names: MissingNames, missing: Name, ask: Callable[[], Any]) -> Any:
    """What is answered without a name; if it is refused, by name, None."""
    with names.without(missing):
        try:
            return ask()
        except SparkExtError as problem:
            assert re.search(f"'({re.escape(missing[1] or missing[0].rpartition('.')[2])}|class)'", str(problem))
            return None


@pytest.mark.slow(40, "runs a job without the first name of each feature")
def test_a_job_runs_without_what_it_does_not_need(lab: JobHarness, names: MissingNames) -> None:
    lab.spark.conf.unset(FILE_MANAGER)  # so that the job chooses one

    def job(number: int) -> list[tuple[str, int]]:
        harness = JobHarness(lab.spark, lab.folder / str(number))
        harness.folder.mkdir()
        frame = with_watermark(
            harness.source(counts="10").withColumn("t", F.timestamp_seconds(F.col("n") + 1)), "t", "1 day"
        )
        harness.job(frame.dropDuplicates(["n", "t"]).drop("t")).run(progress=False, until="now")
        return harness.numbers()

    assert job(0) == expected(10)
    chosen = [(feature, one) for feature in FEATURES for one in sorted(names.asked & {*named(feature)})[:1]]
    wrong = []
    for number, (feature, missing) in enumerate(chosen, 1):
        try:
            found = told(names, missing, partial(job, number))
        except Exception as problem:
            found = problem
        if found != expected(10) and (found is not None or feature not in VITAL):
            wrong.append(f"{missing}: {found!r}")
    assert not wrong


@pytest.mark.slow(8, "reads a plan without each name")
def test_state_whose_definition_cannot_be_read_is_not_compared(
    spark: SparkSession, tmp_path: Path, names: MissingNames
) -> None:
    frames = [kind.build(spark, tmp_path) for name, kind in KINDS.items() if name in TEXTS]
    frames += [build(rows(spark)) for build, _ in CHANGES.values()]
    other = rows(spark).withWatermark("t", "1 minute").alias("b")
    frames += [aggregated("last(v)")(rows(spark)), rows(spark).alias("a").crossJoin(other).where("a.v = b.v")]
    frames += [spark.sql("SELECT DISTINCT v FROM {f}", f=rows(spark))]
    left = {*named("state's definition", "plans")}
    for frame in frames:
        names.asked.clear()
        found = CLASSIC.stateful_operators(frame)
        for missing in sorted(left & names.asked):
            with names.without(missing):
                assert CLASSIC.stateful_operators(frame) in (None, found), missing
        left -= names.asked
    assert {one for one in left if one[1] and one[1] not in UNASKED} <= {*named("plans")}


def without_each(names: MissingNames, features: Collection[str], *asks: Callable[[], Any]) -> list[str]:
    """Ask without each name of some features what asks for it; where it is not refused by name."""
    used: list[tuple[Callable[[], Any], set[Name]]] = []
    for ask in asks:
        names.asked.clear()
        ask()
        used.append((ask, {*names.asked}))
    wrong = []
    for missing in named(*features):
        found = [ask for ask, asked in used if missing in asked]
        if not found and missing[1] and missing[1] not in UNASKED:
            wrong.append(f"{missing}: nothing asks for it")
        for ask in found:
            try:
                told(names, missing, ask)
            except Exception as problem:
                wrong.append(f"{missing}: {problem!r}")
    return wrong


def test_a_failure_is_explained_without_what_cannot_be_read(spark: SparkSession, names: MissingNames) -> None:
    def explode(batch: DataFrame, epoch: int) -> None:
        raise ValueError("no good")

    query = spark.readStream.format("rate").load().writeStream.foreachBatch(explode).start()
    with pytest.raises(StreamingQueryException) as failure:
        query.awaitTermination()
    with pytest.raises(AnalysisException) as refusal:
        spark.sql("SELECT missing FROM VALUES (1) AS t(present)")
    whole = classify(failure.value).verdict.labels

    def explain() -> None:
        assert classify(failure.value).verdict.labels == whole

    def explain_refusal() -> None:
        assert classify(refusal.value).evidence.chain

    features = ("failures", "failures, and sx.control in foreachBatch")
    assert without_each(names, features, explain, explain_refusal) == []


@pytest.mark.slow(10, "starts a query without each name")
def test_each_question_about_a_query_is_refused_by_name(
    spark: SparkSession, tmp_path: Path, names: MissingNames, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    spark.conf.unset(FILE_MANAGER)
    writer = spark.readStream.format("rate").load().writeStream.format("noop")
    query = writer.option("checkpointLocation", str(tmp_path / "c")).start()
    folders = map(tmp_path.joinpath, map(str, itertools.count()))

    def start() -> None:
        folder = next(folders)
        events = _Events(spark)
        with CLASSIC.with_local_files(spark, f"file:{folder}", lambda chosen: True), listening(spark, events):
            writer.option("checkpointLocation", str(folder)).start().stop()
        if events.problem is not None:
            raise events.problem

    def name_sink() -> None:
        spark.conf.set("spark.sql.streaming.queryEvolution.enableSinkEvolution", "true")
        try:
            CLASSIC.name_sink(spark.readStream.format("rate").load().writeStream, "uid")
        finally:
            spark.conf.unset("spark.sql.streaming.queryEvolution.enableSinkEvolution")

    def session_of_thread() -> None:
        with ThreadPoolExecutor(1) as other:
            other.submit(process.session).result()

    query.processAllAvailable()
    diagnosis, events = CLASSIC.diagnosis(spark), _Events(spark)
    with pytest.raises(AnalysisException) as refusal:
        spark.sql("SELECT missing")
    union = rows(spark).select("v").union(rows(spark).select("v")).distinct()
    stage = diagnosis.ended_jobs(1)[0]["info"]["stageIds"][0]
    with listening(spark, events):
        listener: Any = wrapped(events)
    try:
        assert (
            without_each(
                names,
                [feature for feature in FEATURES if feature not in OTHERS],
                start,
                name_sink,
                session_of_thread,
                partial(evidence_of, refusal.value),
                partial(CLASSIC.stateful_operators, union),
                lambda: CLASSIC.sources(spark.readStream.format("rate").load()),
                lambda: CLASSIC.sources(spark.readStream.schema("a int").json(str(tmp_path))),
                lambda: CLASSIC.watermarks(rows(spark).withWatermark("t", "1 minute")),
                lambda: CLASSIC.target(writer),
                lambda: CLASSIC.frame(writer),
                lambda: CLASSIC.hadoop_option(spark, "x"),
                lambda: CLASSIC.is_stopping(spark),
                lambda: CLASSIC.activate(spark, CLASSIC.local_properties(spark)),
                lambda: CLASSIC.activate_if_none(spark),
                lambda: CLASSIC.checkpoint(query),
                lambda: CLASSIC.recent_progress(query, -1),
                lambda: CLASSIC.own_end(query),
                lambda: CLASSIC.ends_by_itself(query),
                lambda: CLASSIC.query(spark.streams, query.id),
                lambda: CLASSIC.set_task_properties(spark, query.id, {}),
                lambda: CLASSIC.has_listener(spark.streams, listener),
                lambda: _entered(listening(spark, events)),
                lambda: CLASSIC.diagnosis(spark).jobs(running=True),
                lambda: CLASSIC.diagnosis(spark).stages(),
                lambda: CLASSIC.diagnosis(spark).executors(),
                lambda: CLASSIC.diagnosis(spark).tasks(stage, 1),
                lambda: CLASSIC.diagnosis(spark).ended_jobs(1),
                lambda: CLASSIC.diagnosis(spark).stage(stage),
                lambda: CLASSIC.diagnosis(spark).plan(0),
                lambda: CLASSIC.diagnosis(spark).threads("driver"),
                process.has_jvm,
                process.installed_home,
                process.session,
                process.submitted_settings,
                partial(process.local_property, "x"),
            )
            == []
        )
    finally:
        query.stop()


def _entered(block: AbstractContextManager[None]) -> None:
    with block:
        pass


class _Events:
    """Gives the tasks of each query that starts a property."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self.problem: Exception | None = None

    def started(self, query_id: str, run_id: str) -> None:
        try:
            CLASSIC.set_task_properties(self._spark, query_id, {"a": "b"})
        except Exception as problem:
            self.problem = problem

    def progressed(self, report: str) -> None: ...

    def terminated(self, query_id: str, run_id: str) -> None: ...


def test_files_of_state_are_refused_by_name(spark: SparkSession, tmp_path: Path, names: MissingNames) -> None:
    spark.conf.set("spark.sql.streaming.stateStore.minDeltasForSnapshot", "1")
    kind, checkpoint, numbers = KINDS["aggregation"], tmp_path / "checkpoint", itertools.count(1)
    (tmp_path / "empty").mkdir()
    idle = spark.readStream.text(str(tmp_path / "empty")).writeStream.format("noop")
    idle.option("checkpointLocation", str(tmp_path / "idle")).start()  # one that Spark's registry of queries has
    add_files(tmp_path / "in", [0])
    loaded = [*named("state that is loaded"), *(one for one in named("queries") if one[1] in UNASKED)]
    for missing in (one for one in loaded if one[1]):
        if not StateStores(spark).loaded(str(checkpoint)):  # as at first, so after each round of Spark's maintenance
            add_files(tmp_path / "in", [next(numbers)])
            run(spark, kind.build(spark, tmp_path / "in"), kind.mode, checkpoint)
        with names.without(missing):
            assert not CLASSIC.settle_state(spark, str(checkpoint)), missing
            assert missing in names.asked
    assert CLASSIC.settle_state(spark, str(checkpoint))
    log, folder = SparkLog(str(checkpoint)), str(checkpoint / "state/0/0")
    last = StateVersion(2, (log.commit(1) or {})["stateUniqueIds"]["0"][0][0])
    files = CLASSIC.state_files(spark, "lz4")
    asks = partial(files.lineage, folder, last), partial(files.referred, folder, last)
    assert without_each(names, ["savepoints of state"], *asks) == []
    for missing in named("rescale")[1:]:
        assert told(names, missing, partial(CLASSIC.repartition_state, spark, str(checkpoint), 3)) is None
        assert missing in names.asked
