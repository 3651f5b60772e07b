from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.budget import folder, over
from tests.support.slices import (
    FILE,
    ROOT,
    Pass,
    Slice,
    is_whole,
    oldest,
    pytest_configure,
    read,
    slice_of,
    with_now,
    with_pass,
)

TEXT = """\
# kept
now = 2

[[slice]]
name = "all"
paths = ["tests"]
passed = {commit = "a1", date = 2026-11-02, seconds = 7}

[[slice]]
name = "jobs"
paths = ["tests/jobs", "tests/test_*.py"]
passed = {commit = "a2", date = 2026-11-01, seconds = 7}
"""


def test_each_test_file_is_in_one_slice_and_no_pattern_is_idle() -> None:
    now, slices = read(FILE.read_text(encoding="utf-8"))
    files = [path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py")]
    for file in files:
        slice_of(file, slices)
    for one in slices:
        for path in one.paths:
            assert any(file.startswith(f"{path}/") or Path(file).match(path) for file in files), path
    assert 1 <= now <= len(slices) <= 18


def test_the_longest_match_holds() -> None:
    _, slices = read(TEXT)
    files = ("tests/jobs/test_x.py", "tests/test_x.py", "tests/ledger/test_x.py")
    assert [slice_of(file, slices).number for file in files] == [2, 2, 1]
    with pytest.raises(LookupError, match=r"tests/ledger/test_x\.py is in no slice"):
        slice_of(files[2], slices[1:])


def test_the_next_slice_is_the_one_whose_pass_is_the_oldest() -> None:
    assert oldest(read(TEXT)[1], now=2).number == 2
    never = with_pass(TEXT, "jobs", Pass("a3", date(2026, 11, 3), 9)) + '[[slice]]\nname = "new"\npaths = []\n'
    assert oldest(read(never)[1], now=2).number == 3
    slices = [Slice(number, "", (), Pass("a1", date(2026, 11, 28), 1)) for number in (1, 2, 3)]
    assert [oldest(slices, now).number for now in (1, 2, 3)] == [2, 3, 1]


def test_a_pass_is_written_at_its_slice_and_changes_nothing_else() -> None:
    assert with_pass(TEXT, "all", Pass("b2", date(2026, 11, 28), 640)) == TEXT.replace(
        '{commit = "a1", date = 2026-11-02, seconds = 7}', '{commit = "b2", date = 2026-11-28, seconds = 640}'
    )
    assert with_pass(TEXT, "renamed while it ran", Pass("b2", date(2026, 11, 28), 640)) == TEXT
    assert with_now(TEXT, 1) == TEXT.replace("now = 2", "now = 1")


def configured(given: str, source: pytest.Config.ArgsSource) -> Any:
    config: Any = SimpleNamespace(option=SimpleNamespace(slice=given), args_source=source, workerinput={})
    pytest_configure(config)
    return config.option.slice


def test_a_worker_takes_the_current_slice_unless_tests_are_named() -> None:
    now, slices = read(FILE.read_text(encoding="utf-8"))
    assert configured("now", pytest.Config.ArgsSource.TESTPATHS) == str(now)
    assert configured("core", pytest.Config.ArgsSource.TESTPATHS) == "core"
    assert configured("now", pytest.Config.ArgsSource.ARGS) is None
    with pytest.raises(pytest.UsageError, match=f"from 1 to {len(slices)}"):
        configured(str(len(slices) + 1), pytest.Config.ArgsSource.TESTPATHS)


def run_of(**changed: Any) -> Any:
    option = {"slice": "2", "markexpr": "", "keyword": "", "deselect": None}
    worker: dict[str, Any] = {"workerinput": {}} if changed.pop("worker", False) else {}
    return SimpleNamespace(
        option=SimpleNamespace(**option | changed), getoption=lambda name, default: default, **worker
    )


def test_a_pass_is_recorded_by_a_whole_run_alone() -> None:
    """Also a worker has a summary: of its own tests, which may have passed while others failed."""
    assert is_whole(run_of()) and is_whole(run_of(markexpr="not core"))
    for changed in ({"markexpr": "not slow"}, {"keyword": "kafka"}, {"slice": None}, {"worker": True}):
        assert not is_whole(run_of(**changed)), changed


def test_a_folder_is_over_by_a_tenth_but_not_by_a_slow_machine() -> None:
    spent = {"tests/jobs": 111.0, "tests/new": 2.0, "tests/model": 0.5}
    assert over(spent, {"tests/jobs": 100}, 1.0) == {"tests/jobs", "tests/new"}
    assert over(spent, {"tests/jobs": 100}, 2.5) == set()
    assert over(spent, {"tests/jobs": 102, "tests/new": 2}, 1.0) == set()
    assert over(spent, {"tests/jobs": 102, "tests/new": 2}, 0.5) == set(), "waiting takes as long on a fast machine"


def test_costs_are_those_of_the_folder_below_tests() -> None:
    assert folder("tests/sinks/kafka_2pc/test_x.py") == "tests/sinks"
    assert folder("tests/test_cli.py") == "tests"
