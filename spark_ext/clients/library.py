"""Client libraries, optional dependencies that a connector imports when it first needs them; and their settings."""

from __future__ import annotations

import os
import re
from importlib import import_module
from pathlib import Path
from typing import Any

from spark_ext import masking
from spark_ext.errors import NOTHING_DONE, EnvironmentProblem, refused

_EVERYWHERE = "the Python of the driver and of the executors"


def load(module: str, extra: str, who: str, where: str = _EVERYWHERE) -> Any:
    """Import a client library."""
    try:
        return import_module(module)
    except ImportError as missing:
        what = f"the client library '{module.partition('.')[0]}' is not installed in this Python: {missing}"
        do = f"pip install 'spark-ext[{extra}]', for {where}"
        raise EnvironmentProblem(what, operator=who, kept=NOTHING_DONE, do=do) from missing


def filled(value: str, option: str, who: str) -> str:
    """A setting with `${NAME}` replaced by an environment variable, which is masked from then on."""

    def variable(match: re.Match[str]) -> str:
        if match[1] not in os.environ:
            what = f"the option '{option}' refers to the environment variable {match[1]}, which is not set"
            raise refused(what, who, f"set {match[1]} for the driver and the executors (spark.executorEnv.{match[1]})")
        masking.remember(os.environ[match[1]])
        return os.environ[match[1]]

    return re.sub(r"\$\{(\w+)\}", variable, value)


def referenced(value: str, option: str, who: str) -> str:
    """A setting, or what it names if it is `env:NAME` or `file:PATH`: a secret, which is masked from then on."""
    source, _, where = value.partition(":")
    if source not in ("env", "file"):
        return value
    try:
        found = os.environ[where] if source == "env" else Path(where).read_text(encoding="utf-8").rstrip("\n")
    except (KeyError, OSError, UnicodeDecodeError):
        what = f"the setting '{option}' is in {value}, which cannot be read"
        raise refused(what, who, "set the variable, or provide the file, for the driver and the executors") from None
    masking.remember(found)
    return found
