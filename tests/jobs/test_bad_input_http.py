"""Bad answers of an HTTP receiver, in real jobs: reported in time, by name, and a good run afterwards is exact."""

import ssl
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import spark_ext as sx
from spark_ext.errors import ConfigurationError, DataError, SparkExtError
from spark_ext.jobs.job import Job
from tests.servers.receiver import Receiver
from tests.support.jobs import JobHarness, expected
from tests.support.refusals import failures, first_epoch, refused
from tests.support.waiting import until

TOKEN = "s3cret-t0ken"


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    with Receiver(tmp_path / "receiver") as there:
        yield there


def job_to(
    lab: JobHarness, url: str, given: dict[str, str] | None = None, source: Any = None, accept: tuple[str, ...] = (),
    **settings: Any,
) -> Job:  # fmt: skip
    """Twenty rows in one epoch, unless another source is given, in requests of ten."""
    frame = lab.source(**(source or {"counts": "20"})).select("channel", "n")
    writer = frame.writeStream.format("http_2pc").options(uid="q-out", url=url, outbox=str(lab.folder / "outbox"))
    made = sx.Job(lab.spark, "lab", state=lab.folder / "state", **settings)
    return made.add("q", writer.options(batch_rows=10, token=TOKEN, **(given or {})), accept=accept)


def taken(receiver: Receiver) -> list[tuple[str, int]]:
    return sorted((row["channel"], row["n"]) for row in receiver.rows())


def test_answers_that_stop_the_job(lab: JobHarness, receiver: Receiver) -> None:
    """One start after the other finds another answer, at the second request; the first one's rows are there once."""
    answers: list[tuple[dict[str, Any], type[SparkExtError], tuple[str, ...]]] = [
        ({"status": 401, "text": f"no such token {TOKEN}"}, ConfigurationError, ("status 401: no such token ***",)),
        ({"status": 413, "text": "at most 100 bytes"}, DataError, ("refused these 10 rows: status 413", "batch_bytes")),
    ]
    for answer, kind, words in answers:
        receiver.behave({}, answer)
        job = job_to(lab, receiver.url)
        with refused(kind, "sink 'q-out'", "epoch 0", "request 1", "the recorded epoch", *words) as caught:
            job.run(progress=False)
        assert [action for _, action in failures(job)][-1] == "stopped: FAILED"
        assert TOKEN not in f"{caught} {failures(job)}"
        assert taken(receiver) == expected(10)
    assert job_to(lab, receiver.url).run(progress=False).finished
    assert taken(receiver) == expected(20)


def test_a_receiver_that_refuses_connections(lab: JobHarness, receiver: Receiver) -> None:
    """Longer than the attempts of a commit and the restarts that other failures have; the same run continues, exact."""
    gate = lab.folder / "gate"
    source = {"counts": "60", "max_rows_per_epoch": 20, "gate": gate}
    quick = {"commit_attempts": "2", "commit_backoff": "10 ms"}
    running = job_to(lab, receiver.url, quick, source, restart_attempts=1, restart_backoff="10 ms").start()
    first_epoch(lab)
    receiver.kill()
    gate.touch()
    until(lambda: len(failures(running)) >= 2, "a restart beyond the attempts")
    assert not running.done
    assert all("there was no answer" in what and action.startswith("restart ") for what, action in failures(running))
    receiver.start()
    assert running.await_termination(90).finished
    assert taken(receiver) == expected(60)


class Taking(BaseHTTPRequestHandler):
    """Takes everything, and counts the rows."""

    rows = 0

    def do_POST(self) -> None:
        Taking.rows += len(self.rfile.read(int(self.headers["Content-Length"])).splitlines())
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Quiet."""


@pytest.fixture
def secure(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """The address of a receiver behind TLS, and the certificate that it has signed itself."""
    certificate, key = tmp_path / "receiver.pem", tmp_path / "receiver.key"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Taking)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    serving.start()
    try:
        yield f"https://127.0.0.1:{server.server_port}/rows", certificate
    finally:
        server.shutdown()
        server.server_close()
        serving.join()


def test_a_certificate_that_nobody_knows(lab: JobHarness, secure: tuple[str, Path]) -> None:
    url, certificate = secure
    job = job_to(lab, url)
    with refused(ConfigurationError, "sink 'q-out'", "certificate was not accepted", "'ca_file'"):
        job.run(progress=False)
    assert [action for _, action in failures(job)] == ["stopped: FAILED"]
    assert Taking.rows == 0
    assert job_to(lab, url, {"ca_file": str(certificate)}).run(progress=False).finished
    assert Taking.rows == 20


def test_a_receiver_that_speaks_no_tls(lab: JobHarness, receiver: Receiver) -> None:
    """It might be starting, or a proxy before it: tried again, and reported."""
    url = receiver.url.replace("http://", "https://")
    job = job_to(lab, url, {"commit_attempts": "2", "commit_backoff": "10 ms"}, restart_attempts=0)
    with refused(SparkExtError, "sink 'q-out'", "could not be committed in 2 attempts", "SSL"):
        job.run(progress=False)
    # Another address is another target, also while an epoch is planned: what was decided is in the outbox.
    with refused(ConfigurationError, "sink 'q-out'", "accept=('q-out.url',)"):
        job_to(lab, receiver.url).run(progress=False)
    assert job_to(lab, receiver.url, accept=("q-out.url",)).run(progress=False).finished
    assert taken(receiver) == expected(20)
