"""Flink as a side: its settings, tables and processes, and what its logs and files tell of a run."""

from __future__ import annotations

import re
import shutil
import statistics
from bisect import bisect
from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks._flink import SCRIPT
from benchmarks.nexmark.judge import part_files
from benchmarks.nexmark.queries import Query
from tests.servers.ports import free_ports
from tests.support.processes import Tree

PARALLELISM: Final = 2
_SETTINGS: Final = {
    "parallelism.default": PARALLELISM, "pipeline.object-reuse": True, "table.local-time-zone": "UTC",
    "execution.checkpointing.interval": "1 s", "execution.checkpointing.mode": "EXACTLY_ONCE",
    "execution.checkpointing.storage": "filesystem", "execution.checkpointing.incremental": True,
    "restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.attempts": 1000,
    "restart-strategy.fixed-delay.delay": "0 s", "state.backend.type": "hashmap", "rest.bind-port": "0",
    "taskmanager.numberOfTaskSlots": PARALLELISM, "taskmanager.memory.network.min": "128mb",
    "taskmanager.memory.network.max": "128mb", "taskmanager.memory.managed.size": "512mb",
}  # fmt: skip
_TYPES: Final = {pa.int64(): "BIGINT", pa.string(): "STRING", pa.timestamp("us", "UTC"): "TIMESTAMP(3)"}
