"""On two Workers, of one cluster: connectors run on executors; E6, E7 and E13 hold there."""

import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from tests.control import sights
from tests.control.test_emit_in_jobs import emitted
from tests.support import operators
from tests.support.cluster import Cluster

DRIVER = """
import json
import logging
import os
import signal
import sys
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext, cloudpickle

import spark_ext as sx
from spark_ext.sinks.contract import CommitOutcome, SinkOptions, TwoPhaseCommitSink
from spark_ext.sources.contract import Advance, Channel, ChannelSource
from tests.control.states import Sent, obeyed
from tests.support import operators
from tests.support.jobs import register
from tests.support.waiting import until

folder = Path(sys.argv[1])
EXECUTORS = {"spark.executor.memory": "600m", "spark.executor.cores": "1"}


class Where(ChannelSource):
    # One row for each of six channels: the folder of the executor that read it. Tasks wait for each other.

    @classmethod
    def name(cls):
        return "where"

    def schema(self):
        return "row string, executor string"

    def discover(self):
        return [Channel(str(n)) for n in range(6)]

    def advance(self, channel, start, limit):
        return Advance(1, finished=True, rows=1)

    def read(self, channel, start, end):
        (folder / "seen" / Path.cwd().parts[-3]).touch()
        until(lambda: len(list((folder / "seen").iterdir())) == 2, "two executors at work")
        yield pa.RecordBatch.from_pydict({"row": [f"where-{channel.id}"], "executor": [os.getcwd()]})


class LinesOptions(SinkOptions):
    path: str


class Lines(TwoPhaseCommitSink):
    # Each row as a line, with the executor's folder in which it was written.

    options_type = LinesOptions

    @classmethod
    def name(cls):
        return "lines"

    def write(self, schema, batches, task):
        rows = [row for batch in batches for row in batch.to_pylist()]
        return [f"{row['row']} {row['executor']} {os.getcwd()}" for row in rows] or None

    def commit(self, schema, epoch, prepared):
        Path(self.options.path).write_text("\\n".join(line for part in prepared for line in part))
        return CommitOutcome.COMMITTED

    def claim(self, claim):
        pass


(folder / "seen").mkdir()
spark = sx.session("x", conf=EXECUTORS)
spark.range(5).write.format("delta").save(str(folder / "t"))
print(spark.read.format("delta").load(str(folder / "t")).count(), "rows")
python = spark.sparkContext.parallelize([0], 1).map(lambda _: __import__("sys").executable).first()
print("python", python == sys.executable)
# A worker may be unable to import the tests, so their code is sent by value too.
cloudpickle.register_pickle_by_value(operators)
sx.register(spark, Where, Lines, operators.Numbers)
where = spark.readStream.format("where").options(uid="where", readers=2).load()
numbers = spark.readStream.format("numbers").options(uid="numbers", readers=2, counts="3,4").load()
rows = where.union(numbers.selectExpr("concat_ws('-', channel, n) AS row", "'-' AS executor"))
job = sx.Job(spark, "connectors", state=folder / "connectors")
job.add("q", rows.writeStream.format("lines").options(uid="lines", path=str(folder / "lines")))
print("finished", job.run(progress=False).finished)
spark.stop()

speculation = {"": "true", "interval": "50ms", "multiplier": "1.1", "quantile": "0.5", "minTaskRuntime": "10ms"}
conf = {f"spark.speculation.{name}".rstrip("."): value for name, value in speculation.items()}
spark = sx.session("x", conf={**EXECUTORS, **conf})
register(spark)


# Process id of the JVM whose daemon has forked this worker.
def executor():
    return int(Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1])


def executors():
    infos = spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()
    return {f"{one.host()}:{one.port()}" for one in infos}


def work(batches):
    context = TaskContext.get()
    epoch, attempt = int(context.getLocalProperty("streaming.sql.batchId")), context.attemptNumber()
    key = f"{epoch}-{context.partitionId()}"
    debug = sx.control.logger("probe").isEnabledFor(logging.DEBUG)
    seen = {"epoch": epoch, "config": dict(sx.control.config()), "executor": executor(), "debug": debug}
    for batch in batches:
        for n, channel in zip(batch.column("n").to_pylist(), batch.column("channel").to_pylist()):
            if n % 10 == 0:
                sx.control.emit("tenth", [channel, n])
        operators.record(str(folder / "attempts"), "attempt", key=key, attempt=attempt, **seen)
        if epoch == 3 and attempt == 0 and context.partitionId() == 0:
            raise RuntimeError("the task fails after it has emitted")
        if epoch == 4 and attempt == 0 and context.partitionId() == 1:
            again = lambda: [one for one in operators.events(folder / "attempts") if one["key"] == key][1:]
            until(again, "the slow task runs a second time beside this one")
        yield batch.append_column("seen", pa.array([json.dumps(seen)] * batch.num_rows, pa.string()))


frame = spark.readStream.format("numbers").options(uid="in", counts="60,60", max_rows_per_epoch=20, readers=2)
frame = frame.option("gate", str(folder / "gate")).load().select("channel", "n")
job = sx.Job(spark, "lab", state=folder / "state")
rows = frame.mapInArrow(work, "channel string, n bigint, seen string")
job.add("q", rows.writeStream.format("folder").options(uid="out", path=str(folder / "out")))
until(lambda: len(executors()) == 3, "the driver and two executors")
job.start()
until(lambda: operators.rows(folder / "out"), "rows of the first epoch")
send = Sent(folder / "state")
send("log_level", {"level": "DEBUG", "logger": "probe"})
obeyed(folder / "state" / "queries" / "q" / "checkpoint", send("set_config", {"key": "k", "value": 1}))
before = executors()
os.kill(json.loads(operators.rows(folder / "out")[0]["seen"])["executor"], signal.SIGKILL)
until(lambda: len(executors()) == len(before) and executors() != before, "the executor is replaced")
(folder / "gate").touch()
print("finished", job.await_termination().finished)
spark.stop()
"""


pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow(60, "starts a cluster with two Workers, kills an executor, and repeats tasks"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("driver")
    (folder / "driver.py").write_text(DRIVER)
    (folder / "cluster").mkdir()
    with Cluster(folder / "cluster", workers=2, apart=True) as cluster:
        done = subprocess.run(
            [sys.executable, str(folder / "driver.py"), str(folder)],
            env={**os.environ, **cluster.environment, "PYTHONPATH": str(Path(__file__).parents[2])},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "5 rows\npython True\nfinished True\nfinished True\n"), done.stderr
    return folder


def test_sources_and_sinks_of_main_and_modules_run_on_executors(folder: Path) -> None:
    """What Spark pickles arrives where nobody has seen the code. So do Delta and this Python."""
    lines = [line.split() for line in (folder / "lines").read_text().splitlines()]
    mine = [f"where-{n}" for n in range(6)]
    assert sorted(row for row, *_ in lines) == [*(f"0-{n}" for n in range(3)), *(f"1-{n}" for n in range(4)), *mine]
    read = {executor for row, executor, _ in lines if row in mine}
    assert {writer for row, _, writer in lines if row in mine} == read
    assert len(read) == 2 and all(str(folder / "cluster" / "work-") in executor for executor in read)


def test_e6_e7_and_e13_on_two_workers(folder: Path) -> None:
    rows = operators.rows(folder / "out")
    assert sorted((row["channel"], row["n"]) for row in rows) == [(c, n) for c in "01" for n in range(60)]
    attempted = operators.events(folder / "attempts")
    first, later = ({one["executor"] for one in attempted if bool(one["config"]) is obeys} for obeys in (False, True))
    killed = json.loads(rows[0]["seen"])["executor"]
    # On a busy machine one executor may have run both tasks of each of the first epochs.
    assert first - later == {killed} and len(later) == 2 and later - first, "another executor has taken its place"
    assert {(json.dumps(one["config"]), one["debug"]) for one in attempted} == {("{}", False), ('{"k": 1}', True)}
    seen = [json.loads(row["seen"]) for row in rows]
    checkpoint = folder / "state" / "queries" / "q" / "checkpoint"
    for one in seen:
        assert one["config"] == sights.expected(checkpoint, "q", one["epoch"])[0], one
    attempts = defaultdict(set)
    for one in attempted:
        attempts[one["key"]].add(one["attempt"])
    # A first attempt that Spark kills because the second one was faster may have recorded nothing.
    assert max(attempts["3-0"]) > 0, "a task was retried"
    assert max(attempts["4-1"]) > 0, "a task was speculated on"
    found = [row.value["value"] for row in emitted(folder / "state")]
    assert sorted(found) == [[channel, n] for channel in "01" for n in range(0, 60, 10)]
