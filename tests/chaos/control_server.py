"""A REST server of its own, to be killed: `python -m tests.chaos.control_server STATE PORT TOKENS`."""

from __future__ import annotations

import sys

from spark_ext.server.server import ControlServer


def main(state: str, port: str, tokens: str) -> None:
    with ControlServer(state, port=int(port), tokens=tokens) as server:
        server.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
