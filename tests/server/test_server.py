"""The server's own socket."""

import socket

from spark_ext.server.endpoint import Endpoint
from spark_ext.server.limits import Limits


def test_no_answer_waits_for_its_header_to_be_acknowledged() -> None:
    """Otherwise each answer on a reused connection takes 40 ms more."""
    with Endpoint("a test", Limits()).bound() as bound, socket.create_connection(bound.getsockname()):
        accepted, _ = bound.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
