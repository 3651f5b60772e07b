"""A job whose everything lies in an object store, looked at from many sides."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from spark_ext.cli import app
from spark_ext.failpoints import ONCE_DIR, VARIABLE
from tests.chaos import object_store_job
from tests.chaos.object_store import InStore, small
from tests.chaos.verify import Content, differences, ledger_problems
from tests.servers.object_store import Bucket, ObjectStore
from tests.servers.store_proxy import Fault, StoreProxy
from tests.support.processes import Tree

LIMIT = 900.0  # how long one start may take, s


@pytest.fixture
def proxy(object_store: ObjectStore, tmp_path: Path) -> Iterator[StoreProxy]:
    with StoreProxy(object_store.port, tmp_path) as proxy:
        yield proxy


@pytest.fixture
def bucket(object_store: ObjectStore, proxy: StoreProxy, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """A bucket behind the proxy, which this process and the job find by the environment."""
    bucket = object_store.bucket(proxy.endpoint)
    for name, value in {**bucket.environment, "SPARK_MASTER": "local[2]", "AWS_DEFAULT_REGION": "us-east-1"}.items():
        monkeypatch.setenv(name, value)
    return bucket


def finished(scenario: InStore, out: Path, *more: str, **env: str) -> int | None:
    log = out.with_name(f"{out.name}-{len(list(out.parent.glob('*.log')))}.log")
    with Tree([*scenario.command(out), *more], log, env) as run:
        code = run.wait(LIMIT)
        print(run.text()[-3000:])
        return code


# What works without faults is in the gallery and on the page of object stores, in each run of the tests.
@pytest.mark.slow(90, "starts a job with everything in a store twice")
@pytest.mark.timeout(1800)
def test_a_killed_job_over_a_faltering_store_agrees_with_pandas(
    bucket: Bucket, proxy: StoreProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario, out = small(bucket), tmp_path / "everything"
    once = tmp_path / "acted"
    once.mkdir()
    # kill -9 of the driver just after a commit that Spark does not know of.
    point = {VARIABLE: "delta.committed=kill-driver", ONCE_DIR: str(once)}
    assert finished(scenario, out, "--per-epoch", "1500", **point) == -9
    proxy.behave(
        # Fewer in a row than a request has attempts: a start that meets more is refused, as transient.
        Fault(r"/checkpoint/(offsets|state)/", status=503, times=4),
        Fault(r"/_delta_log/", "GET", status=503, times=4),
        Fault("/commits/", delay=1.0, times=4),
        Fault(r"/_delta_log/\d+\.json", "PUT", lost=True, times=3),
        Fault(r"\.changelog", "PUT", status=500, times=2),
    )
    assert finished(scenario, out, "--per-epoch", "1500") == 0
    assert proxy.seen()["faulty"] >= 10
    proxy.behave()
    for name, expected in object_store_job.expected().items():
        assert differences(name, scenario.content(out)[name], Content(expected)) == []
    assert scenario.leftovers(out, late_tasks=False) == []
    # A start whose claim was answered by nobody takes one more number.
    assert ledger_problems(scenario.state(out), scenario.queries, 2 + 3) == []
    secret = bucket.options["aws_secret_access_key"].encode()
    assert [key for key in bucket.keys(out.name) if secret in bucket.get(key)] == [], "a secret was written"
    for name in bucket.environment:
        monkeypatch.delenv(name)
    given = [part for pair in bucket.options.items() for part in ("--storage", "=".join(pair))]
    shown = CliRunner().invoke(app, ["status", scenario.state(out), *given])
    assert shown.exit_code == 0, shown.output
    assert "FINISHED" in shown.output
