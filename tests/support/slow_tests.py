"""Lists the tests that take more than 10 s without `@pytest.mark.slow(seconds, reason)`.

They are reported at the end and do not fail: on a busy machine everything takes longer.
"""

from __future__ import annotations

from typing import Final

import pytest

LIMIT_S: Final = 10.0


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.getreports(kind)]
    found = [
        report
        for report in reports
        if report.when == "call" and report.duration > LIMIT_S and "slow" not in report.keywords
    ]
    if found:
        terminalreporter.section(f"above {LIMIT_S:g} s without a reason", sep="-")
        for report in sorted(found, key=lambda report: -report.duration):
            terminalreporter.write_line(f"{report.duration:.0f} s {report.nodeid}")
