"""What a run takes: the core, and one slice of the rest, of those that `tests/slices.toml` lists with their last pass.

`python -m tests.support.slices` turns the slice on whose pass is the oldest.
"""

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timezone
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Final

import pytest
import tomlkit

ROOT: Final = Path(__file__).parents[2]
FILE: Final = ROOT / "tests" / "slices.toml"
CORE: Final = "core"
NOW: Final = "now"


@dataclass(frozen=True)
class Pass:
    commit: str
    date: date
    seconds: int  # worker-seconds of the slice, without the core


_BEGUN: Final = pytest.StashKey[tuple[str, str]]()
"""The name of the slice and the commit with which a run began: both may change while it lasts."""


@dataclass(frozen=True)
class Slice:
    number: int
    name: str
    paths: tuple[str, ...]
    """Folders, files, or patterns of files; where several slices match a file, the longest one holds."""
    passed: Pass | None

    def __str__(self) -> str:
        last = f"passed at {self.passed.commit}, {self.passed.date}" if self.passed else "not passed yet"
        return f"{self.number} {self.name} ({last})"


def read(text: str) -> tuple[int, list[Slice]]:
    content: dict[str, Any] = tomlkit.parse(text).unwrap()
    return content["now"], [
        Slice(number, one["name"], tuple(one["paths"]), Pass(**one["passed"]) if "passed" in one else None)
        for number, one in enumerate(content["slice"], 1)
    ]


def slice_of(file: str, slices: Sequence[Slice]) -> Slice:
    """The slice of a test file, given relative to the project."""
    found = [
        (len(path), one) for one in slices for path in one.paths if file.startswith(f"{path}/") or fnmatch(file, path)
    ]
    if not found:
        raise LookupError(f"{file} is in no slice: add its folder to one in {FILE.relative_to(ROOT)}")
    return max(found, key=lambda match: match[0])[1]


def oldest(slices: Sequence[Slice], now: int) -> Slice:
    """The slice that passed longest ago; one that never did comes first. Of one day, the next one after `now`."""
    return min(
        slices, key=lambda one: (one.passed.date if one.passed else date.min, (one.number - now - 1) % len(slices))
    )


def with_now(text: str, number: int) -> str:
    content = tomlkit.parse(text)
    content["now"] = number
    return tomlkit.dumps(content)


def with_pass(text: str, name: str, passed: Pass) -> str:
    """The file's text with a slice's last pass; unchanged if no slice has that name any more."""
    content = tomlkit.parse(text)
    entry = tomlkit.inline_table()
    entry.update(vars(passed))
    for one in content["slice"]:
        if one["name"] == name:
            one["passed"] = entry
    return tomlkit.dumps(content)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--slice",
        metavar="N",
        help=f"run the core and slice N of tests/slices.toml; '{NOW}': the one that is on; '{CORE}': the core alone. "
        "Has no effect on files that are named.",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if config.option.slice is None:
        return
    if config.args_source is pytest.Config.ArgsSource.ARGS:
        config.option.slice = None
        return
    now, slices = read(FILE.read_text(encoding="utf-8"))
    chosen = str(now) if config.option.slice == NOW else config.option.slice
    if chosen != CORE and chosen not in {str(one.number) for one in slices}:
        raise pytest.UsageError(f"--slice {chosen}: expected '{NOW}', '{CORE}' or a number from 1 to {len(slices)}")
    config.option.slice = chosen
    if chosen != CORE and is_whole(config):
        config.stash[_BEGUN] = slices[int(chosen) - 1].name, _commit()


def pytest_report_header(config: pytest.Config) -> list[str]:
    if config.option.slice is None:
        return []
    _, slices = read(FILE.read_text(encoding="utf-8"))
    others = [str(one) for one in slices if str(one.number) != config.option.slice]
    taken = [f"and slice {one}" for one in slices if str(one.number) == config.option.slice]
    return [" ".join(["tests: the core", *taken]), *(f"  not in this run: slice {other}" for other in others)]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """After `selection` has marked the core."""
    _, slices = read(FILE.read_text(encoding="utf-8"))
    held = {file: str(slice_of(file, slices).number) for file in {item.nodeid.partition("::")[0] for item in items}}
    if config.option.slice is None:
        return
    kept: list[pytest.Item] = []
    left: list[pytest.Item] = []
    for item in items:
        core = item.get_closest_marker(CORE) is not None
        (kept if core or held[item.nodeid.partition("::")[0]] == config.option.slice else left).append(item)
    config.hook.pytest_deselected(items=left)
    items[:] = kept


def is_whole(config: pytest.Config) -> bool:
    """Whether a run takes all of its slice, with the core or with `-m "not core"`; a worker has a part of it."""
    option = config.option
    return (
        option.slice is not None
        and not hasattr(config, "workerinput")
        and option.markexpr in ("", f"not {CORE}")
        and not (option.keyword or option.deselect or config.getoption("lf", False))
    )


def record(config: pytest.Config, seconds: float) -> None:
    name, commit = config.stash.get(_BEGUN, ("", ""))
    if commit:
        passed = Pass(commit, datetime.now(timezone.utc).date(), round(seconds))
        FILE.write_text(with_pass(FILE.read_text(encoding="utf-8"), name, passed), encoding="utf-8")


def _commit() -> str:
    """The newest commit; "" in a source distribution."""
    command = ["git", "rev-parse", "--short=8", "HEAD"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()


def main() -> None:
    text = FILE.read_text(encoding="utf-8")
    now, slices = read(text)
    chosen = oldest(slices, now)
    FILE.write_text(with_now(text, chosen.number), encoding="utf-8")
    print(f"slice {chosen} is on")


if __name__ == "__main__":
    main()
