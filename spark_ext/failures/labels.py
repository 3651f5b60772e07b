"""The words of a verdict: types, origins, and what may be done. Each has one meaning in tables, options and pages."""

from __future__ import annotations

import re
from enum import Enum
from typing import Final

UNKNOWN: Final = "UNKNOWN"  # in place of the type of what has none
TYPE_NAME: Final = re.compile(r"[A-Z][A-Z0-9_]{0,63}")  # names of types, also of the user's own


class FailureType(str, Enum):
    """What kind of failure it is."""

    USER_CODE = "USER_CODE"
    """A fault in a function or expression of the user's."""
    USER_DATA = "USER_DATA"
    """A row that cannot be parsed or converted, or that violates a constraint."""
    SERIALIZATION = "SERIALIZATION"
    """An object could not be pickled, or serialized in Java."""
    CONFIGURATION = "CONFIGURATION"
    """An option, table, column, class, module or credential is wrong or missing."""
    SOURCE = "SOURCE"
    """A source failed: its data has gone or is damaged, or its code is faulty."""
    SINK = "SINK"
    """A sink failed: its target has gone or has been changed, or its code is faulty."""
    NETWORK = "NETWORK"
    """A connection was refused, broken or timed out, wherever it was made."""
    RESOURCE = "RESOURCE"
    """Memory, disk space, open files, processes or the size of a result are exhausted."""
    STATE = "STATE"
    """The state of a stateful operator is damaged, missing, or does not fit the query."""
    CHECKPOINT = "CHECKPOINT"
    """The logs or metadata of a checkpoint are damaged, missing or contradictory."""
    FENCED = "FENCED"
    """Another start of the job, or another query, owns the checkpoint or the target."""
    CANCELED = "CANCELED"
    """Somebody stopped it."""
    SYSTEM = "SYSTEM"
    """Spark or a machine failed, or nothing else is known."""


class Origin(str, Enum):
    """Whose code failed, by the frames of the failure."""

    USER = "user"
    """The user's."""
    DEPENDENCY = "dependency"
    """An installed package that the user's code called."""
    LIBRARY = "library"
    """A source, sink or other package that no code of the user's called."""
    SPARK = "spark"
    """Spark's."""


class Response(str, Enum):
    """What is done about a failure."""

    STOP = "stop"
    """The query fails at once."""
    RESTART_ONCE = "restart once"
    """It is restarted; if it fails again before an epoch is committed, it fails for good."""
    RESTART = "restart"
    """It is restarted with back-off, up to the limits of its row."""
    RESTORE = "restore"
    """It cannot continue from where it is: the job fails, and says which checkpoint it can be restored from."""
    ASK = "ask"
    """Only a person can decide: the job fails, and says what there is to choose from."""
