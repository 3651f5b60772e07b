"""Python runs this in each process that Spark starts in the tests' session; `tests.support.forks` makes another one.

This process stays in its place as `cat`, on which Spark may act: when either ends, so does the other. If nobody
answers, it goes on itself.
"""

import os
import sys

command = sys.orig_argv[2:] if sys.orig_argv[1:2] == ["-m"] else [""]
if command[0] == "pyspark.daemon" or command[0].endswith(("_runner", "_driver_worker")):
    import json
    import socket
    import subprocess
    import time
    from pathlib import Path

    name = os.environ["SPARK_EXT_TESTS_FORKS"]

    def ask() -> socket.socket | None:
        """A connection to the process that forks; None without one."""
        asking = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            asking.connect(f"\0{name}")
        except OSError:
            asking.close()
            return None
        return asking

    asking = ask()
    if asking is None:
        forks = subprocess.Popen(
            [sys.executable, "-m", "tests.support.forks", name, str(os.getppid())], stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, cwd=Path(__file__).parents[3],
        )  # fmt: skip
        while asking is None and forks.poll() is None:
            time.sleep(0.01)
            asking = ask()
        asking = asking or ask()  # of another one that was faster
    if asking is not None:
        start = {"command": command, "path": sys.path, "environment": dict(os.environ), "directory": str(Path.cwd())}
        socket.send_fds(asking, [json.dumps(start).encode()], [0, 1, 2])
        os.dup2(asking.fileno(), 0)
        os.execvp("cat", ["cat"])
