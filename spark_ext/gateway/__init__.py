"""The gateway: a process of its own that takes events over HTTP and WebSocket, and keeps them in an inbox."""

from __future__ import annotations

import logging
from typing import Final

from spark_ext.masking import logger

LIBRARY: Final = logger("spark_ext.gateway.websockets")
"""For the library that reads and writes WebSocket frames."""
LIBRARY.setLevel(logging.ERROR)  # its other lines have addresses and headers, and with them secrets
