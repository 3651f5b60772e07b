"""The pages about pushed events and the code agree: schemes, windows, levels, settings, files for proxies and pods."""

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from spark_ext import Job, cli
from spark_ext.ingest.description import ACKS, DAY, PERSISTS, SCHEMES, SIGNED, InboxDescription
from spark_ext.options import byte_count
from tests.support import pages

EXAMPLES = Path(__file__).parents[2] / "examples"
PUSH = pages.read("push")
INBOX = pages.section("http_ingest", "The inbox")
PARTS = {
    f"{part['kind']} {part['metadata']['name']}": part
    for part in yaml.safe_load_all((EXAMPLES / "kubernetes" / "gateway.yaml").read_text(encoding="utf-8"))
}


def cells(text: str) -> dict[str, list[str]]:
    """Rows of the tables of a text by what is in their first cell."""
    rows = [re.split(r" *\| *", row)[1:-1] for row in re.findall(r"^\|.*\|$", text, re.MULTILINE)]
    return {row[0].strip("`"): row[1:] for row in rows}


def test_each_scheme_has_its_signature_and_its_window() -> None:
    rows = cells(pages.section("push", "Once"))
    assert {name or "none" for name in SCHEMES} <= rows.keys()
    for name, window in SCHEMES.items():
        identity, signed, days = rows[name or "none"]
        assert identity and days == f"{window // DAY} days", name
        assert ("body" in signed) is (name in SIGNED), name


def test_each_level_is_explained() -> None:
    levels = [name.split("`")[0] for name in cells(pages.section("push", "What an answer promises")) if name in PUSH]
    assert {*ACKS} <= {*levels}
    assert all(f'persist="{name}"' in PUSH for name in PERSISTS)


def test_the_settings_of_an_inbox_are_those_of_the_code() -> None:
    given = [name for name in inspect.signature(Job.inbox).parameters if name not in ("self", "name")]
    assert pages.options(INBOX) == {*given}
    about = InboxDescription("a", "b", "c")
    for name, value in pages.defaults(INBOX).items():
        kept = getattr(about, name)
        assert (byte_count(value) if isinstance(kept, int) else value) == kept, name


@pytest.fixture(scope="module")
def container() -> dict[str, Any]:
    (found,) = PARTS["StatefulSet orders-gateway"]["spec"]["template"]["spec"]["containers"]
    return dict(found)


def test_the_pods_run_a_command_that_exists(container: dict[str, Any]) -> None:
    program, group, name, *given = container["command"]
    app: Any = typer.main.get_command(cli.app)
    assert (program, group) == ("spark-ext", "ingest")
    assert given[:2] == ["s3://bucket/state", "orders"]
    made = app.commands[group].commands[name].make_context(name, [*given])  # refuses what it does not know
    assert made.params["gateway"] == "$(POD_NAME)"
    assert {item["name"] for item in container["env"]} >= {"POD_NAME", "STRIPE_SECRET"}


def test_the_parts_of_the_manifest_belong_together(container: dict[str, Any]) -> None:
    pods = PARTS["StatefulSet orders-gateway"]["spec"]
    labels = pods["template"]["metadata"]["labels"]
    assert pods["serviceName"] == PARTS["Service orders-gateways"]["metadata"]["name"]
    for part in ("Service orders-gateway", "Service orders-gateways"):
        assert PARTS[part]["spec"]["selector"] == labels
    assert PARTS["PodDisruptionBudget orders-gateway"]["spec"]["selector"]["matchLabels"] == labels
    (claim,) = pods["volumeClaimTemplates"]
    (mount,) = container["volumeMounts"]
    assert mount["name"] == claim["metadata"]["name"] and f"--wal={mount['mountPath']}" in container["command"]
    assert f"--port={container['ports'][0]['containerPort']}" in container["command"]
    assert {*pods["persistentVolumeClaimRetentionPolicy"].values()} == {"Retain"}


def test_the_proxy_logs_no_token() -> None:
    text = (EXAMPLES / "nginx" / "gateways.conf").read_text(encoding="utf-8")
    logged = re.search(r"log_format \w+ '([^']*)'", text)
    pattern = re.search(r'^ +"~(\S+)" +"\$\{before\}-";$', text, re.MULTILINE)
    assert logged and pattern
    assert not re.search(r"\$(request|request_uri|uri|args|query_string|http_\w+)\b", logged[1])
    found = re.match(pattern[1].replace("(?<", "(?P<"), "/v1/inboxes/orders/t/sxt_secret/more")
    assert found and found["before"] == "/v1/inboxes/orders/t/"
    assert "location /v1/inboxes/ {" in text and "server_name hooks.example.com;" in text
