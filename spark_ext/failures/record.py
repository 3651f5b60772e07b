"""What a Python worker adds to the text of its failure: the exceptions as data, which no message can imitate.

Spark passes a worker's failure on as text, and shortens or hides the traceback on request. The record has the frames
all the same, and the bases of each class, so that an exception of an unknown library is known by what it derives from.
It carries the mark of the session's workers; see `errors`.
"""

from __future__ import annotations

import base64
import json
import re
import traceback
import zlib
from collections.abc import Collection
from typing import Any, Final

from spark_ext import errors, worker_internals
from spark_ext.failures.evidence import Frame, Link, Raised, cut
from spark_ext.failures.owners import owner_of_function
from spark_ext.failures.python_error import errno_of, linked, raised_by, said_by
from spark_ext.failures.python_text import names_of_bases
from spark_ext.masking import mask

_RECORD: Final = re.compile(r"\n?\[spark-ext record (?P<mark>[0-9a-f]{8}) (?P<body>[A-Za-z0-9+/=]+)\]\n?")
_FRAMES: Final = 16  # frames of one exception in a record: the innermost ones
_MESSAGE: Final = 500  # characters of one message in a record


def install() -> None:
    """Let failures of this process, and of those that it forks, carry records. May be called again at any time."""
    worker_internals.extend_failures(written)


def written(error: BaseException) -> str:
    """The record of an exception, one line; "" in a process that does not know the mark."""
    mark = errors.workers_mark()
    if not mark:
        return ""
    found = json.dumps([_entry(one, link) for one, link in linked(error)])
    body = base64.b64encode(zlib.compress(found.encode())).decode()
    return f"\n[spark-ext record {mark} {body}]\n"


def _entry(error: BaseException, link: Link) -> dict[str, Any]:
    kind, message = type(error), said_by(error)
    frames = [
        [frame.filename, frame.lineno or 0, frame.name]
        for frame in traceback.StackSummary.extract(traceback.walk_tb(error.__traceback__), lookup_lines=False)
    ]
    return {
        "kind": f"{kind.__module__}.{kind.__qualname__}",
        # The error of a worker is made anew from it.
        "message": mask(message) if isinstance(error, errors.SparkExtError) else cut(mask(message), _MESSAGE),
        "link": link.value,
        "bases": names_of_bases(kind),
        "errno": errno_of(error),
        "by": raised_by(error),
        "frames": frames[-_FRAMES:],
    }


def read(text: str, user_packages: Collection[str] = ()) -> tuple[Raised, ...] | None:
    """The exceptions of the record in a text, outermost first; None: no record of this session's workers."""
    for match in reversed(list(_RECORD.finditer(text))):
        if match["mark"] == errors.known_mark():
            entries = json.loads(zlib.decompress(base64.b64decode(match["body"])))
            return tuple(_raised(entry, user_packages) for entry in entries)
    return None


def _raised(entry: dict[str, Any], packages: Collection[str]) -> Raised:
    frames = tuple(
        Frame(owner_of_function(file, name, packages), file, line, name) for file, line, name in entry["frames"]
    )
    return Raised(
        entry["kind"],
        entry["message"],
        Link(entry["link"]),
        tuple(reversed(frames)),
        tuple(entry["bases"]),
        errno=entry["errno"],
        code=errors.code_in(entry["message"]),
        by=entry["by"],
    )


def without(text: str) -> str:
    """The text without records, for people."""
    return _RECORD.sub("\n", text) if "[spark-ext record " in text else text
