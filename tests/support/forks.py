"""Forks the Python processes of a Spark driver: all but the workers of its tasks, which `tests.support.daemon` forks.

Importing what they need takes longer than most of them work. `planners/sitecustomize.py`, in each process that Spark
starts, sends here what is to be done: `python -m tests.support.forks SOCKET JVM`.
"""

import fcntl
import gc
import json
import os
import runpy
import select
import signal
import socket
import struct
import sys
from pathlib import Path


def serve(name: str, jvm: int) -> None:
    """Fork a process for each request until the JVM ends; if the abstract socket is taken, it has such a process."""
    os.setpgid(0, 0)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind(f"\0{name}")
    listening.listen(128)
    import_all()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.collect()
    gc.freeze()
    events = select.poll()
    ended = os.pidfd_open(jvm)
    events.register(ended, select.POLLIN)
    events.register(listening, select.POLLIN)
    while all(number != ended for number, _ in events.poll()):
        asking, _ = listening.accept()
        if os.fork() == 0:
            listening.close()
            os.close(ended)
            become(asking)
            return
        asking.close()


def import_all() -> None:
    """What processes import that Spark starts for sources and sinks."""
    import pyspark.sql.streaming.python_streaming_source_runner
    import pyspark.sql.worker.commit_data_source_write
    import pyspark.sql.worker.create_data_source
    import pyspark.sql.worker.plan_data_source_read
    import pyspark.sql.worker.python_streaming_sink_runner
    import pyspark.sql.worker.write_into_data_source  # noqa: F401

    import spark_ext.sinks.delta_2pc
    import spark_ext.sinks.exchange_2pc
    import spark_ext.sinks.runtime.writer
    import spark_ext.sources.datagen
    import spark_ext.sources.end_of_input
    import spark_ext.sources.exchange
    import spark_ext.sources.http_ingest
    import spark_ext.sources.runtime.view  # noqa: F401
    import tests.support.daemon  # noqa: F401


def become(asking: socket.socket) -> None:
    _, user, _ = struct.unpack("3i", asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    if user != os.getuid():
        return
    message, files, _, _ = socket.recv_fds(asking, 1 << 20, 3)
    start = json.loads(message)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    fcntl.fcntl(asking, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(asking, fcntl.F_SETSIG, signal.SIGTERM)
    fcntl.fcntl(asking, fcntl.F_SETFL, os.O_ASYNC)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(start["environment"])
    os.chdir(start["directory"])
    module, *sys.argv[1:] = start["command"]
    sys.path[:] = [start["directory"], *start["path"]]  # `python -m` puts the working directory first
    Path("/proc/self/comm").write_text(module[-15:])  # the name by which tests find it
    sys.modules.pop(module, None)  # as in a new process, where it is only `__main__`
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]))
