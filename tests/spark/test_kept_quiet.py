"""What Java and pyspark write to standard error, and no user should see."""

import os
import socket
import threading
from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyspark.accumulators import UpdateRequestHandler

from spark_ext.spark.backend.process import _forward, quiet_accumulators

WARNING = b"WARNING: Using incubator modules: jdk.incubator.vector\n"
OTHER = (
    b"Picked up JAVA_TOOL_OPTIONS: -Xmx1g\n",
    b"[Stage 0:>  (0 + 2) / 4]\r",
    b"WARNING: something else\n",
    b"x",
    b"\n",
)


def forwarded(*chunks: bytes) -> bytes:
    # Unlike a pipe, it passes chunks as they are written.
    source, its = (one.detach() for one in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
    ours, target = os.pipe()
    thread = threading.Thread(target=_forward, args=(source, target))
    thread.start()
    for chunk in chunks:
        os.write(its, chunk)
    os.close(its)
    thread.join()
    os.close(target)
    os.close(source)
    with os.fdopen(ours, "rb") as found:
        return found.read()


@given(st.lists(st.sampled_from(OTHER), max_size=5), st.lists(st.integers(0, 200), max_size=4))
@example([], [1])
def test_all_but_the_warning_arrives_as_it_was_written(rest: list[bytes], cuts: list[int]) -> None:
    text = WARNING + b"".join(rest)
    bounds = [0, *sorted(cut for cut in cuts if cut < len(text)), len(text)]
    chunks = [text[begin:end] for begin, end in pairwise(bounds)]
    assert forwarded(*filter(None, chunks)) == b"".join(rest)


@given(st.lists(st.sampled_from((*OTHER, WARNING[:9], WARNING[:1])), max_size=5))
def test_without_the_warning_nothing_is_left_out(rest: list[bytes]) -> None:
    assert forwarded(*rest) == b"".join(rest)


def test_a_line_is_not_held_until_it_ends() -> None:
    source, its = os.pipe()
    ours, target = os.pipe()
    threading.Thread(target=_forward, args=(source, target), daemon=True).start()
    os.write(its, b"[Stage 0:>")
    assert os.read(ours, 100) == b"[Stage 0:>"
    os.close(its)


@pytest.mark.parametrize("sent", [b"", b"\0\0\0\1"], ids=["closed", "in the middle"])
def test_a_jvm_that_is_gone_leaves_no_stack(sent: bytes) -> None:
    quiet_accumulators()
    quiet_accumulators()
    ours, its = socket.socketpair()
    its.sendall(sent)
    its.close()
    UpdateRequestHandler(ours, ("", 0), SimpleNamespace(auth_token=None, server_shutdown=False))  # type: ignore[arg-type]
    ours.close()
