"""Which tests run in the same worker: those of a file, and all that use the Kafka broker.

A broker takes a twentieth of a core while nobody uses it, and seconds of CPU to start; PostgreSQL takes neither.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from xdist.scheduler import LoadFileScheduling

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
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling:
    """Distribute groups of files, instead of files."""
    from xdist.scheduler import LoadFileScheduling

    class GroupScheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group(super()._split_scope(nodeid))

    return GroupScheduling(config, log)
