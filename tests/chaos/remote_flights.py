"""The flights example in a client of Spark Connect: `python -m tests.chaos.remote_flights --out DIR --data DIR`."""

import sys
from argparse import ArgumentParser

from examples.flights import job
from tests.chaos.commands import ended, session

if __name__ == "__main__":
    parser = ArgumentParser()
    for name in ("--out", "--data"):
        parser.add_argument(name, required=True)
    given = parser.parse_args()
    sys.exit(ended(job(session("flights", {}), given.out, given.data).run(progress=False)))
