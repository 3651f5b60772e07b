"""What the tests cost: worker-seconds of the core by folder, beside the budget in `pyproject.toml`, and of the slice.

A fixed loop, timed in each worker before each file, tells a slow or busy machine from tests that have become slow.
Tests above 10 s without `@pytest.mark.slow(seconds, reason)` are listed. Time alone never fails a run.
"""

import time
from collections import Counter
from collections.abc import Mapping
from statistics import median
from typing import Any, Final

import pytest
import tomlkit

from tests.support import slices

OVER: Final = 1.1  # a folder that costs more than its budget times this is named in red
LIMIT_S: Final = 10.0
COSTLIEST: Final = 10  # number of files of the slice that are shown


def loop_ms() -> float:
    begin = time.perf_counter()
    sum(number * number for number in range(100_000))
    return (time.perf_counter() - begin) * 1000


def folder(file: str) -> str:
    """The folder below `tests` of a test file; `tests` for the files in it."""
    parts = file.split("/")
    return "/".join(parts[:2]) if len(parts) > 2 else parts[0]


def over(spent: Mapping[str, float], budget: Mapping[str, float], slowness: float) -> set[str]:
    """The folders that have spent too much; one without a budget has no leave to spend more than a second.

    A fast machine does not shorten the budget, as much of the time is spent waiting.
    """
    slowness = max(slowness, 1)
    return {name for name, seconds in spent.items() if seconds > max(budget.get(name, 0) * OVER, 1) * slowness}


class Costs:
    """A run's worker-seconds, and how long the loop took in it."""

    def __init__(self) -> None:
        self._file = ""
        self._loops_ms: list[float] = []

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        file = item.nodeid.partition("::")[0]
        if file != self._file:
            self._file = file
            self._loops_ms.append(loop_ms())

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["loops_ms"] = self._loops_ms

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        self._loops_ms.extend(getattr(node, "workeroutput", {}).get("loops_ms", ()))

    @pytest.hookimpl(tryfirst=True)
    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config
    ) -> None:
        """The table, and the record of a pass."""
        core: Counter[str] = Counter()
        rest: Counter[str] = Counter()
        for kind in ("passed", "failed", "skipped", "error", ""):  # "": setups and teardowns
            for report in terminalreporter.getreports(kind):
                file = report.nodeid.partition("::")[0]
                if slices.CORE in getattr(report, "keywords", ()):  # that of a file that cannot be imported has none
                    core[folder(file)] += report.duration
                else:
                    rest[file] += report.duration
        if not slices.is_whole(config) or not self._loops_ms:
            return
        if exitstatus == pytest.ExitCode.OK:
            slices.record(config, rest.total())
        _show(terminalreporter, core, rest, median(self._loops_ms))


def _show(terminal: pytest.TerminalReporter, core: Counter[str], rest: Counter[str], loop: float) -> None:
    project: Any = tomlkit.parse((slices.ROOT / "pyproject.toml").read_text(encoding="utf-8")).unwrap()
    settings = project["tool"]["spark-ext-tests"]
    budget: dict[str, float] = settings["budget"]
    slowness = loop / settings["loop_ms"]
    red = over(core, budget, slowness)
    terminal.section("worker-seconds of the core", sep="-")
    for name, seconds in core.most_common():
        if seconds >= 1:
            line = f"{seconds:7.0f} of {budget.get(name, 0):4} s  {name}"
            terminal.write_line(f"{line}  over its budget" if name in red else line, red=name in red)
    terminal.write_line(f"{core.total():7.0f} of {sum(budget.values()):4} s  in all")
    if rest:
        terminal.section("worker-seconds of the slice", sep="-")
        for name, seconds in rest.most_common(COSTLIEST):
            terminal.write_line(f"{seconds:7.0f} s  {name}")
        terminal.write_line(f"{rest.total():7.0f} s  in all, {len(rest)} files")
    terminal.write_line(f"a fixed loop took {loop:.1f} ms, {slowness:.2f} times as long as when the budget was set")


def pytest_configure(config: pytest.Config) -> None:
    if config.option.slice is not None:
        config.pluginmanager.register(Costs(), "costs")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List the tests that are slow without a reason."""
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.getreports(kind)]
    late = [one for one in reports if one.when == "call" and one.duration > LIMIT_S and "slow" not in one.keywords]
    if late:
        terminalreporter.section(f"above {LIMIT_S:g} s without a reason", sep="-")
        for report in sorted(late, key=lambda report: -report.duration):
            terminalreporter.write_line(f"{report.duration:.0f} s {report.nodeid}")
