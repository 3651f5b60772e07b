"""The command `plot`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from spark_ext import cli
from tests.support.page_states import shop

pytestmark = pytest.mark.slow(0.3, "draws whole figures of a job of seven queries")

Capture = pytest.CaptureFixture[str]


def spark_ext(capture: Capture, *arguments: str) -> tuple[int, str, str]:
    """Exit code, output and errors of a command, in this process: it starts neither Spark nor threads."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as ended:
        patch.setattr(sys, "argv", ["spark-ext", *arguments])
        cli.main()
    found = capture.readouterr()
    return int(ended.value.code or 0), found.out, found.err


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> str:
    return shop(tmp_path_factory.mktemp("shop") / "state", hours=0.2)


def test_a_file_is_written(state: str, tmp_path: Path, capsys: Capture) -> None:
    for ending, begin in (("png", b"\x89PNG"), ("svg", b"<?xml")):
        file = tmp_path / f"shop.{ending}"
        code, out, _ = spark_ext(capsys, "plot", state, "--out", str(file), "--kind", "epochs", "--kind", "channels")
        assert code == 0 and f"{file.stat().st_size:,} bytes" in out
        assert file.read_bytes().startswith(begin)


def test_the_terminal_is_the_default(state: str, capsys: Capture) -> None:
    code, out, _ = spark_ext(capsys, "plot", state, "--kind", "lag")
    assert code == 0 and out.startswith("shop ")
    assert "Rows still to be read" in out and "Duration" not in out
    assert "\x1b" not in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--out", "shop.xlsx"), "use one of: .png, .svg, .pdf"),
        (("--out", "shop"), "does not end with"),
        (("--out", "no/folder.png"), "No such file"),
        (("--kind", "colours"), "'colours' is not one of"),
    ],
)
def test_what_cannot_be_written_is_refused(state: str, arguments: tuple[str, ...], said: str, capsys: Capture) -> None:
    code, _, err = spark_ext(capsys, "plot", state, *arguments)
    assert code == 2 and said in err and "Traceback" not in err


def test_what_is_no_job_is_refused(tmp_path: Path, capsys: Capture) -> None:
    code, _, err = spark_ext(capsys, "plot", str(tmp_path))
    assert code == 2 and "not the state directory of a job" in err


@pytest.mark.parametrize(("missing", "arguments"), [("matplotlib", ("--out", "a.png")), ("plotext", ())])
def test_a_missing_library_is_named(
    state: str, missing: str, arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    code, _, err = spark_ext(capsys, "plot", state, *arguments)
    assert code == 2 and "pip install 'spark-ext[plot]'" in err and "Traceback" not in err
