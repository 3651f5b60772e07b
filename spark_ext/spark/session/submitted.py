"""What a session finds when it is made: settings given to spark-submit, and the master that was asked for.

A program that spark-submit has started finds a JVM with the settings of the command line, which Spark takes as
defaults: what a program sets comes before them. A session that has settings of its own has to leave those alone.
"""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Mapping
from typing import Final

LOCAL: Final = "local[*]"
"""Spark's own default, and that of sessions."""

_GATEWAY: Final = "PYSPARK_GATEWAY_PORT"
_ARGUMENTS: Final = "PYSPARK_SUBMIT_ARGS"
_MASTER: Final = "spark.master"


def submitted_settings() -> dict[str, str]:
    """Settings of the JVM that has started this program: those of the command line and of its file of defaults.

    Empty unless spark-submit has started it.
    """
    if _GATEWAY not in os.environ:
        return {}
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()
    return dict(SparkConf().getAll())


def master_of(submitted: Mapping[str, str]) -> str:
    """The master of a session for which the program names none.

    Args:
        submitted: see `submitted_settings`. Its `local[*]` may be spark-submit's own default.
    """
    asked = submitted.get(_MASTER, LOCAL)
    if asked != LOCAL:
        return asked
    return _of_arguments(os.environ.get(_ARGUMENTS, "")) or os.environ.get("SPARK_MASTER") or LOCAL


def _of_arguments(arguments: str) -> str | None:
    """The master in the arguments with which pyspark starts a JVM, as spark-submit takes them."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--master")
    parser.add_argument("--conf", "-c", action="append", default=[])
    try:
        found = parser.parse_known_args(shlex.split(arguments))[0]
    except (ValueError, SystemExit):
        return None  # Spark says what is wrong with them
    settings = dict(pair.split("=", 1) for pair in found.conf if "=" in pair)
    return found.master or settings.get(_MASTER)
