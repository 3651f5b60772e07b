"""Run cases, and record the evidence of each: `python -m tests.failures.record [--name GLOB] [--where local]`.

Local cases share one session. Each of the others gets a driver of its own, on a standalone cluster if it asks for one.
"""

import argparse
import fnmatch
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Final

from pyspark import cloudpickle
from pyspark.sql import SparkSession

import spark_ext as sx
from spark_ext.failures.evidence import Evidence
from spark_ext.spark.backend.failures import evidence_of
from tests.failures.corpus import Case, all_cases
from tests.failures.results import RECORDED, ROOT, lines_of
from tests.support.cluster import Cluster
from tests.support.waiting import until

_DRIVER: Final = "--driver"
_COMMAND: Final = (sys.executable, "-m", "tests.failures.record", _DRIVER)
_TIMEOUT: Final = 300
"""How long a case of a driver may take, s."""
_PACKAGES: Final = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"
"""What cases in a process of their own need, from the start of Java on."""


def portable(evidence: Evidence, folder: str) -> str:
    """A record as JSON, without paths of this machine."""
    text = json.dumps({**evidence.to_json(), "lines": lines_of(evidence)}, indent=1).replace(folder, "FOLDER")
    python = str(Path(sys.base_prefix) / "lib")
    return text.replace(f"{sys.prefix}/lib", "venv/lib").replace(f"{ROOT}/", "").replace(python, "python/lib") + "\n"


def made(spark: SparkSession, case: Case) -> str:
    """The record of a case that is made to happen; raises AssertionError if it does not fail."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            assert case.cause is not None, case.name
            case.cause(spark, Path(folder))
        except BaseException as failure:
            return portable(evidence_of(failure), folder)
    raise AssertionError(f"{case.name} did not fail")


@contextmanager
def cluster() -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory() as folder, Cluster(Path(folder), workers=2) as running:
        yield running


class Driver:
    """Makes one case after the other fail in another process, each in a session of its own, perhaps on a cluster.

    A start of Java takes longer than most cases. It is started again when a case has ended it.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = {**os.environ, **environment}
        self._process = self._started()

    def _started(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            _COMMAND, cwd=ROOT, env=self._environment, stdin=subprocess.PIPE, stdout=sys.stderr, text=True
        )

    def __enter__(self) -> "Driver":
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self._process.communicate(timeout=_TIMEOUT)
        finally:
            self._process.kill()

    def made(self, case: Case) -> str:
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "record.json"
            print(case.name, out, file=self._process.stdin, flush=True)
            try:
                until(lambda: out.exists() or self._process.poll() is not None, f"the record of {case.name}", _TIMEOUT)
            except TimeoutError:
                self._process.kill()
                self._process.wait()
                self._process = self._started()  # the next case is not to blame
                raise
            assert out.exists(), f"the driver of {case.name} has left no record"
            text = out.read_text()
        assert text.startswith("{"), text
        return text


def _drive() -> None:
    with suppress(ChildProcessError):
        os.waitpid(-1, 0)  # the Java of before
    cases = {case.name: case for case in all_cases()}
    for line in sys.stdin:
        name, _, out = line.strip().partition(" ")
        case = cases[name]
        # Executors have no tests to import.
        cloudpickle.register_pickle_by_value(sys.modules[case.cause.__module__])
        packages = {"spark.jars.packages": _PACKAGES} if case.where == "process" else {}
        spark = _session({**packages, **case.conf}, master="local[2]" if case.where == "process" else None)
        system = spark._jvm.java.lang.System  # type: ignore[union-attr]
        for setting in case.conf:
            system.clearProperty(setting)  # with which Java was started, and would give it to each further session
        try:
            text = made(spark, case)
        except AssertionError as problem:
            text = str(problem)
        try:
            spark.stop()
            answers = isinstance(system.currentTimeMillis(), int)
        except Exception:
            answers = False
        draft = Path(f"{out}.draft")
        draft.write_text(text)
        draft.rename(out)
        if not answers:
            # Java has ended; or a signal has interrupted a call, whose answer is then taken for that of the next one.
            os.execv(_COMMAND[0], _COMMAND)


def _session(conf: dict[str, str], *, master: str | None) -> SparkSession:
    settings = {"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2", **conf}
    return sx.session("failures", master=master, conf=settings)


def main() -> None:
    """Record what the arguments select."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", default="*")
    parser.add_argument("--where", default="local", choices=("local", "process", "cluster"))
    parser.add_argument("--held-out", action="store_true", help="held-out cases instead of the others")
    parser.add_argument("--show", action="store_true", help="print the evidence, and record nothing")
    parser.add_argument(_DRIVER, action="store_true", help="make those fail that standard input names")
    given = parser.parse_args()
    if given.driver:
        _drive()
        return
    chosen = [one for one in all_cases() if fnmatch.fnmatch(one.name, given.name)]
    chosen = [one for one in chosen if one.where == given.where and one.held_out == given.held_out]
    RECORDED.mkdir(exist_ok=True)
    shared = _session({}, master="local[2]") if given.where == "local" else None
    with cluster() if given.where == "cluster" else nullcontext() as running:
        _record(chosen, shared, running.environment if running else {}, show=given.show)
    if shared is not None:
        shared.stop()


def _record(chosen: Sequence[Case], shared: SparkSession | None, environment: Mapping[str, str], *, show: bool) -> None:
    for case in chosen:
        try:
            if shared is not None:
                text = made(shared, case)
            else:
                with Driver(environment) as driver:
                    text = driver.made(case)
        except (AssertionError, TimeoutError) as problem:
            print(f"{case.name}: {problem}", flush=True)
            continue
        _keep(case, text, show=show)


def _keep(case: Case, text: str, *, show: bool) -> None:
    chain = Evidence.from_json(json.loads(text)).chain
    if show:
        for raised in chain:
            print("  ", raised.link.value, raised.kind, raised.condition, raised.sqlstate, raised.message[:300])
            for frame in raised.frames[:8]:
                print("        ", frame.owner.value, frame.file, frame.line, frame.function)
    else:
        (RECORDED / f"{case.name}.json").write_text(text)
    print(case.name, "->", " > ".join(raised.name for raised in chain), flush=True)


if __name__ == "__main__":
    main()
