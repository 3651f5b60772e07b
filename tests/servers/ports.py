"""Ports for servers that are killed and come back at the same address."""

import random
import socket
from typing import Final

FIRST, LAST = 20_000, 32_000
"""Below those that the system gives to outgoing connections. One of these could be given away while its server is down,
also to the very client that tries to reach it, which would then talk to itself."""

_ANY: Final = random.SystemRandom()  # as test processes that start at once must not choose alike


def free_ports(count: int) -> list[int]:
    sockets: list[socket.socket] = []
    try:
        while len(sockets) < count:
            one = socket.socket()
            try:
                one.bind(("127.0.0.1", _ANY.randrange(FIRST, LAST)))
            except OSError:
                one.close()
                continue
            sockets.append(one)
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()
