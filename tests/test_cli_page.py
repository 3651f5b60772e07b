"""The commands `report`, `top` and `plot`."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from spark_ext.ledger import Ledger
from spark_ext.ledger.schema import EpochRow
from tests.ledger.rows import epoch
from tests.support.page_states import shop
from tests.test_cli import printed, refused, spark_ext


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> str:
    return shop(tmp_path_factory.mktemp("shop") / "state", hours=0.2)


def test_a_report_is_written(state: str, tmp_path: Path) -> None:
    file = tmp_path / "shop.html"
    done = spark_ext("report", state, "-o", str(file))
    assert done.returncode == 0 and f"{file.stat().st_size:,} bytes" in done.stdout
    text = file.read_text()
    assert text.startswith("<!doctype html>") and "load-orders" in text and "KeyError" in text


def test_what_cannot_be_written_or_read_is_refused(state: str, tmp_path: Path) -> None:
    assert "No such file" in refused("report", state, "-o", tmp_path / "no" / "folder.html")
    for command in ("report", "top", "plot"):
        assert "not the state directory of a job" in refused(command, tmp_path)


def test_top_once(state: str) -> None:
    done = spark_ext("top", state, "--once")
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and lines[0].startswith("shop ")
    assert lines[1].split()[:3] == ["query", "state", "rows/s"] and lines[2].split()[:2] == ["price", "FAILED"]
    assert "KeyError" in lines[2]
    found = printed("top", state, "--once")
    assert found["job"] == "shop" and len(found["queries"]) == 7 and found["queries"][0]["incident"] == "4c1f02aa3"


def test_top_sees_what_is_new_and_ctrl_c_ends_it_quietly(state: str) -> None:
    command = [sys.executable, "-m", "spark_ext", "top", state, "--json", "--interval", "0.2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as top:
        try:
            assert top.stdout is not None and top.stderr is not None
            before = json.loads(top.stdout.readline())["epochs"]
            Ledger(state).table(EpochRow).append([epoch(9_000, "audit")])
            while json.loads(top.stdout.readline())["epochs"] == before:
                pass
            top.send_signal(signal.SIGINT)
            top.stdout.read()
            assert top.wait(60) == 0 and top.stderr.read() == ""
        finally:
            top.kill()


drawn = pytest.mark.slow(0.3, "draws whole figures of a job of seven queries")


@drawn
def test_a_file_is_written(state: str, tmp_path: Path) -> None:
    for ending, begin in (("png", b"\x89PNG"), ("svg", b"<?xml")):
        file = tmp_path / f"shop.{ending}"
        done = spark_ext("plot", state, "--output", file, "--kind", "epochs", "--kind", "channels")
        assert done.returncode == 0 and f"{file.stat().st_size:,} bytes" in done.stdout
        assert file.read_bytes().startswith(begin)


@drawn
def test_the_terminal_is_the_default(state: str) -> None:
    done = spark_ext("plot", state, "--kind", "lag")
    assert done.returncode == 0 and done.stdout.startswith("shop ") and "\x1b" not in done.stdout
    assert "Rows still to be read" in done.stdout and "Duration" not in done.stdout


@drawn
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--output", "shop.xlsx"), "use one of: .png, .svg, .pdf"), (("--output", "shop"), "does not end with"),
        (("--output", "no/folder.png"), "No such file"), (("--kind", "colours"), "'colours' is not one of"),
    ],
)  # fmt: skip
def test_what_cannot_be_drawn_is_refused(state: str, arguments: tuple[str, ...], said: str) -> None:
    assert said in refused("plot", state, *arguments)


@drawn
@pytest.mark.parametrize(("missing", "arguments"), [("matplotlib", ("--output", "a.png")), ("plotext", ())])
def test_a_missing_library_is_named(
    state: str, missing: str, arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    assert "pip install 'spark-ext[plot]'" in refused("plot", state, *arguments)
