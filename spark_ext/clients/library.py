"""Client libraries: optional dependencies that a connector imports when it first needs them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from spark_ext.errors import NOTHING_DONE, EnvironmentProblem

_EVERYWHERE = "the Python of the driver and of the executors"


def load(module: str, extra: str, who: str, where: str = _EVERYWHERE) -> Any:
    """Import a client library."""
    try:
        return import_module(module)
    except ImportError as missing:
        raise EnvironmentProblem(
            f"the client library '{module.partition('.')[0]}' is not installed in this Python: {missing}",
            operator=who,
            kept=NOTHING_DONE,
            do=f"pip install 'spark-ext[{extra}]', for {where}",
        ) from missing
