"""The files for Kubernetes agree with the package: versions, exit codes, the state that is looked at.

No cluster is there to apply them to; `docs/kubernetes.md` says how they were checked.
"""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from examples import orders_per_day
from spark_ext.commands.output import REFUSED, RUNNING
from spark_ext.spark.session import object_stores
from tests.servers.object_store import Bucket
from tests.support import cheap_jvm
from tests.support.versions import of_4_2

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "kubernetes"
DOCKERFILE = (FOLDER / "Dockerfile").read_text(encoding="utf-8")
PAGE = (ROOT / "docs" / "kubernetes.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def parts() -> dict[str, dict[str, Any]]:
    return {part["kind"]: part for part in yaml.safe_load_all((FOLDER / "job.yaml").read_text(encoding="utf-8"))}


def test_the_image_has_the_versions_of_the_package() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8").lower().replace("_", "-")
    version = re.search(r'^version = "(.*)"', project, re.MULTILINE)
    spark = re.search(r"^FROM apache/spark:([\d.]+)-", DOCKERFILE, re.MULTILINE)
    py4j = re.search(r"py4j-([\d.]+)-src.zip", DOCKERFILE)
    delta = re.search(r"delta-spark==([\d.]+)", DOCKERFILE)
    assert version and spark and py4j and delta
    assert f"spark-ext[ingest,object-stores]=={version[1]}" in DOCKERFILE
    assert {f"pyspark=={spark[1]}", f"py4j=={py4j[1]}", f"delta-spark=={delta[1]}"} <= set(pinned.splitlines())


def test_a_refused_start_is_final_and_a_running_one_not_counted(parts: dict[str, dict[str, Any]]) -> None:
    spec = parts["Job"]["spec"]
    rules = {
        rule["action"]: rule["onExitCodes"]["values"]
        for rule in spec["podFailurePolicy"]["rules"]
        if "onExitCodes" in rule
    }
    assert rules == {"FailJob": [REFUSED], "Ignore": [RUNNING]}
    assert spec["template"]["spec"]["restartPolicy"] == "Never"  # podFailurePolicy needs it


def test_the_names_of_the_manifests_belong_together(parts: dict[str, dict[str, Any]]) -> None:
    pod = parts["Job"]["spec"]["template"]["spec"]
    (driver,) = pod["containers"]
    settings = next(item["value"] for item in driver["env"] if item["name"] == "PYSPARK_SUBMIT_ARGS")
    account = parts["ServiceAccount"]["metadata"]["name"]
    assert pod["serviceAccountName"] == account == parts["RoleBinding"]["subjects"][0]["name"]
    assert f"container.image={driver['image']} " in settings
    assert f"executor.serviceAccountName={account} " in settings
    given = {item["name"] for item in driver["env"]}
    assert set(re.findall(r"\$\((\w+)\)", settings)) <= given
    assert {"INPUT", "OUTPUT", "STATE"} <= given  # what examples/orders_per_day.py reads
    assert "STOPSIGNAL SIGINT" in DOCKERFILE


@pytest.mark.slow(40, "a driver with a session of its own, with the jars of S3")
def test_the_manifests_command_runs_with_its_state_in_a_store(
    parts: dict[str, dict[str, Any]], bucket: Bucket, tmp_path: Path
) -> None:
    (driver,) = parts["Job"]["spec"]["template"]["spec"]["containers"]
    orders_per_day.make_input(tmp_path / "input", days=2, orders=10)
    program = str(ROOT / "examples" / "orders_per_day.py")
    command = [program if word == "/opt/job/job.py" else word for word in driver["command"]]
    places = {"INPUT": str(tmp_path / "input"), "OUTPUT": f"{bucket.uri}/per_day", "STATE": f"{bucket.uri}/state"}
    done = subprocess.run(
        [sys.executable, "-m", "spark_ext", *command[1:]],
        env={**cheap_jvm.environment(), **bucket.environment, **places, "SPARK_MASTER": "local[1]"}, cwd=tmp_path,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "FINISHED" in done.stdout and bucket.keys("per_day/_delta_log/") and bucket.keys("state/ledger/")


@of_4_2
def test_the_manifests_of_the_page_are_yaml() -> None:
    (found,) = map(yaml.safe_load, re.findall(r"^```yaml\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE))
    assert found["kind"] == "SparkApplication"
    delta, *s3 = found["spec"]["deps"]["packages"]
    assert delta in (ROOT / "docs" / "spark-submit.md").read_text(encoding="utf-8")
    assert ",".join(s3) == object_stores.s3_coordinates()
    assert found["spec"]["deps"]["excludePackages"] == [object_stores.EXCLUDED]
