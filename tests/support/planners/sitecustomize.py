"""Python runs this whenever Spark of the tests' session starts a process: planners and committers are forked instead.

Spark starts one for each source and sink of each query, and importing what it needs takes most of its life. This
process asks `tests.support.daemon` for one that has imported it, and stays as `cat`, on which Spark may act: when
either ends, so does the other. If nobody answers, it goes on as the planner itself.
"""

import os
import sys

if sys.orig_argv[1:2] == ["-m"] and sys.orig_argv[2].endswith(("_runner", "_driver_worker")):
    import json
    import socket

    asking = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        asking.connect("\0" + os.environ["SPARK_EXT_TESTS_PLANNERS"])
    except (KeyError, OSError):
        asking.close()
    else:
        start = {"module": sys.orig_argv[2], "path": sys.path, "environment": dict(os.environ)}
        socket.send_fds(asking, [json.dumps(start).encode()], [0, 1, 2])
        os.dup2(asking.fileno(), 0)
        os.execvp("cat", ["cat"])
