"""The files for Kubernetes agree with the package: versions, exit codes, the state that is looked at.

No cluster is there to apply them to; `docs/kubernetes.md` says how they were checked.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from spark_ext.commands.output import REFUSED, RUNNING

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "kubernetes"
DOCKERFILE = (FOLDER / "Dockerfile").read_text(encoding="utf-8")
PAGE = (ROOT / "docs" / "kubernetes.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def parts() -> dict[str, dict[str, Any]]:
    """The manifests, by kind."""
    return {part["kind"]: part for part in yaml.safe_load_all((FOLDER / "job.yaml").read_text(encoding="utf-8"))}


def test_the_image_has_the_versions_of_the_package() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8").lower().replace("_", "-")
    version = re.search(r'^version = "(.*)"', project, re.MULTILINE)
    spark = re.search(r"^FROM apache/spark:([\d.]+)-", DOCKERFILE, re.MULTILINE)
    py4j = re.search(r"py4j-([\d.]+)-src.zip", DOCKERFILE)
    delta = re.search(r"delta-spark==([\d.]+)", DOCKERFILE)
    assert version and spark and py4j and delta
    assert f"spark-ext[object-stores]=={version[1]}" in DOCKERFILE
    assert {f"pyspark=={spark[1]}", f"py4j=={py4j[1]}", f"delta-spark=={delta[1]}"} <= set(pinned.splitlines())


def test_a_refused_start_is_not_repeated_and_a_running_one_does_not_count(parts: dict[str, dict[str, Any]]) -> None:
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


def test_the_manifests_of_the_page_are_yaml() -> None:
    blocks = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    assert [yaml.safe_load(block)["kind"] for block in blocks] == ["SparkApplication"]
