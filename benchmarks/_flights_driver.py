"""A process of `benchmarks.short_lived`: the job of `examples/flights.py` from the start of Python to its end.

Prints two times as JSON, s since the process was started: of the first committed epoch and of the end of the job.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import psutil

import spark_ext as sx
from examples.flights import job


def main(out: str, data: str, short_lived: str) -> None:
    begun = psutil.Process().create_time()
    spark = sx.session("flights", master="local[2]", short_lived=bool(int(short_lived)))
    flights = job(spark, out, data)
    result = flights.run(progress=False)
    ended = time.time()
    assert result.finished and result.rows > 0
    first = flights.ledger.epochs().agg({"committed_at": "min"}).collect()[0][0]
    print(json.dumps({"first": first.timestamp() - begun, "whole": ended - begun}))


if __name__ == "__main__":
    main(str(Path(sys.argv[1])), *sys.argv[2:])
