"""Run cases, and record the evidence of each: `python -m tests.failures.record [--name GLOB] [--where local]`.

Local cases share one session. Each of the others gets a driver of its own, on a standalone cluster if it asks for one.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Final

from pyspark import cloudpickle
from pyspark.sql import SparkSession

import spark_ext as sx
from spark_ext.failures.evidence import Evidence
from spark_ext.spark.failure_chain import evidence_of
from tests.failures.corpus import Case, all_cases
from tests.support.cluster import Cluster

RECORDED: Final = Path(__file__).parent / "recorded"
ROOT: Final = Path(__file__).parents[2]
_ALONE: Final = "--alone"
_TIMEOUT: Final = 300
"""How long a driver of its own may take, s."""


def portable(evidence: Evidence, folder: str) -> str:
    """A record as JSON, without paths of this machine."""
    text = json.dumps(evidence.to_json(), indent=1).replace(folder, "FOLDER")
    python = str(Path(sys.base_prefix) / "lib")
    return text.replace(f"{sys.prefix}/lib", "venv/lib").replace(f"{ROOT}/", "").replace(python, "python/lib") + "\n"


def made(spark: SparkSession, case: Case) -> str:
    """The record of a case that is made to happen; raises AssertionError if it does not fail."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            case.cause(spark, Path(folder))
        except BaseException as failure:
            return portable(evidence_of(failure), folder)
    raise AssertionError(f"{case.name} did not fail")


@contextmanager
def cluster() -> Iterator[Cluster]:
    """The cluster of cases that need one."""
    with tempfile.TemporaryDirectory() as folder, Cluster(Path(folder), workers=2) as running:
        yield running


def made_apart(case: Case, environment: Mapping[str, str]) -> str:
    """The record of a case in a driver of its own.

    Args:
        case: what is to fail.
        environment: of a cluster, if the driver runs on one.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "record.json"
        subprocess.run(
            [sys.executable, "-m", "tests.failures.record", _ALONE, str(out), "--name", case.name],
            cwd=ROOT,
            env={**os.environ, **environment},
            timeout=_TIMEOUT,
            check=False,
            stdout=sys.stderr,
        )
        assert out.exists(), f"the driver of {case.name} has left no record"
        return out.read_text()


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
    parser.add_argument(_ALONE, type=Path, help="write the record of one case to this file")
    given = parser.parse_args()
    chosen = [one for one in all_cases() if fnmatch.fnmatch(one.name, given.name)]
    if given.alone is not None:
        (case,) = chosen
        # Executors have no tests to import.
        cloudpickle.register_pickle_by_value(sys.modules[case.cause.__module__])
        spark = _session(dict(case.conf), master="local[2]" if case.where == "process" else None)
        given.alone.write_text(made(spark, case))
        return
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
            text = made(shared, case) if shared is not None else made_apart(case, environment)
        except (AssertionError, subprocess.TimeoutExpired) as problem:
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
