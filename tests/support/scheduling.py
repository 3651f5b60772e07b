"""Which tests run in the same worker: those of a file, and all that use the Kafka broker.

A broker takes a twentieth of a core while nobody uses it, and seconds of CPU to start; PostgreSQL takes neither.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest

_ROOT: Final = Path(__file__).parents[2]
_USES_BROKER: Final = re.compile(r"^from tests\.(servers\.kafka|sinks\.kafka_2pc|sources\.kafka_range)\b", re.MULTILINE)


@cache
def group(file: str) -> str:
    """The group of a test file, given relative to the project: its own, or that of the broker."""
    return "kafka" if _USES_BROKER.search((_ROOT / file).read_text(encoding="utf-8")) else file


def pytest_configure(config: pytest.Config) -> None:
    """Workers take the groups in the order of `selection`, not by their number of tests."""
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Distribute groups of files, instead of files."""
    from xdist.scheduler import LoadFileScheduling

    scheduling = LoadFileScheduling(config, log)
    scheduling._split_scope = lambda nodeid: group(nodeid.partition("::")[0])
    return scheduling
