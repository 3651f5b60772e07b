"""`spark-ext notify-test` against real HTTP servers."""

import json
from pathlib import Path

import pytest

from tests.listeners.endpoint import Endpoint, serving
from tests.test_cli import refused, spark_ext

OWN = "types:\n  - {name: late, severity: WARNING, description: Rows are late., resolved: report}\n"


def listening(folder: Path, *entries: str) -> Path:
    file = folder / "incidents.yaml"
    file.write_text(OWN + "listeners:\n" + "".join(f"  - {entry}\n" for entry in entries))
    return file


def hook(to: Endpoint, options: str = "", rest: str = "") -> str:
    return f"{{use: webhook, options: {{url: '{to.url}', give_up_after: 1 s{options}}}{rest}}}"


def test_each_listener_gets_what_it_is_configured_for(tmp_path: Path) -> None:
    with serving() as one, serving() as other:
        file = listening(
            tmp_path, hook(one, rest=", types: [late], severity: CRITICAL"), hook(other, ", format: slack")
        )
        done = spark_ext("notify-test", file)
    assert (done.returncode, done.stdout) == (0, "webhook-1: ok\nwebhook-2: ok\n"), done.stderr
    opened, resolved = (json.loads(body) for _, body in one.requests)
    assert (opened["new"], resolved["new"]) == ("OPEN", "RESOLVED"), "it stays open nowhere"
    assert (opened["incident"]["type"], opened["incident"]["severity"]) == ("late", "CRITICAL")
    assert opened["context"] == {"job": "notify-test"} and opened["incident"]["labels"] == {"test": "true"}
    text = json.loads(other.requests[0][1])["text"]
    assert text.startswith("*[ERROR] notify-test: failure*\na test of the notifications")


def test_one_that_does_not_take_it_is_named_and_the_others_get_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with serving([400] * 2, b"no such channel") as wrong, serving() as right:
        done = spark_ext("notify-test", listening(tmp_path, hook(wrong), hook(right)))
    assert (done.returncode, done.stdout) == (1, "webhook-1: NOT NOTIFIED\nwebhook-2: ok\n")
    assert "127.0.0.1 has answered 400: no such channel" in caplog.text and len(right.requests) == 2


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ((), "has no listeners"),
        (("{use: webhok}",), "unknown listener 'webhok'"),
        (("{use: webhook, options: {url: 'https://x/y', format: slak}}",), "option 'format'"),
    ],
    ids=["none", "misspelled", "format"],
)
def test_a_file_that_cannot_notify_is_refused(tmp_path: Path, entries: tuple[str, ...], says: str) -> None:
    file = listening(tmp_path, *entries)
    if not entries:
        file.write_text(OWN)
    assert says in refused("notify-test", file)
    assert "cannot be read" in refused("notify-test", tmp_path / "nowhere.yaml")
