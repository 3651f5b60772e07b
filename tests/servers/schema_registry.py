"""Schema registries for tests: ours, a real HTTP server with the part of Confluent's REST interface that clients use.

It does not compare schemas: tests say which subjects are `fixed`. `apicurio` is a real registry, in memory, if Maven
can fetch it: it shows that ours answers as a real one does.
"""

import base64
import json
import os
import shutil
import subprocess
import tarfile
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import pytest

from tests.servers.handler import Handler, InThread
from tests.servers.ports import free_ports
from tests.support.waiting import until

VERSION: Final = "3.0.9"  # of Apicurio Registry: the newest that runs with Java 17
USER, PASSWORD = "reader", "s3cret-of-the-registry"
JSON = "application/vnd.schemaregistry.v1+json"


class Client:
    url: str
    prefix = ""  # of the subjects that tests register: formats of one subject cannot change

    def register(self, subject: str, schema: str, kind: str = "AVRO", references: Any = ()) -> int:
        body = {"schema": schema, "schemaType": kind, "references": list(references)}
        path = f"{self.url}/subjects/{self.prefix}{subject}/versions"
        request = urllib.request.Request(path, json.dumps(body).encode(), {"Content-Type": JSON, **self.login()})
        with urllib.request.urlopen(request, timeout=30) as answer:
            return int(json.load(answer)["id"])

    def login(self) -> dict[str, str]:
        return {}


class SchemaRegistry(Client, InThread):
    def __init__(self) -> None:
        super().__init__(_Handler, registry=self)
        self._lock = threading.Lock()
        self._schemas: list[dict[str, Any]] = []
        self._subjects: dict[str, list[int]] = {}
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.asked: list[str] = []  # paths of all requests but those that register
        self.status = 200  # another one is the answer to everything
        self.fixed: set[str] = set()  # subjects with which no other schema is compatible
        self.closed = False  # whether it asks for a password

    def delete(self, subject: str) -> None:
        """Delete a subject permanently: its next version is its first."""
        with self._lock:
            del self._subjects[subject]

    def login(self) -> dict[str, str]:
        return {"Authorization": "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()}

    def answer(self, method: str, path: list[str], body: Any, headers: Any) -> tuple[int, Any]:
        with self._lock:
            if self.status != 200:
                return self.status, {"error_code": self.status * 100 + 1, "message": "not now"}
            if self.closed and headers["Authorization"] != self.login()["Authorization"]:
                return 401, {"error_code": 401, "message": "Unauthorized"}
            if method == "POST" and path[0] == "subjects" and path[2:] == ["versions"]:
                return self._add(path[1], body)
            self.asked.append("/".join(path))
            match path:
                case ["subjects", subject] if method == "POST":
                    return self._look_up(subject, body)
                case ["compatibility", "subjects", subject, "versions", "latest"] if method == "POST":
                    if subject not in self._subjects:
                        return _no_subject(subject)
                    return 200, {"is_compatible": subject not in self.fixed}
                case ["schemas", "ids", id]:
                    if 0 < int(id) <= len(self._schemas):
                        return 200, self._schemas[int(id) - 1]
                    return 404, {"error_code": 40403, "message": f"Schema {id} not found"}
                case ["subjects", subject, "versions", version]:
                    return self._version(subject, version)
        return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}

    def _look_up(self, subject: str, body: Any) -> tuple[int, Any]:
        if subject not in self._subjects:
            return _no_subject(subject)
        schema = _parts(body)
        for number, id in enumerate(self._subjects[subject], 1):
            if self._schemas[id - 1] == schema:
                return 200, {"subject": subject, "version": number, "id": id, **schema}
        return 404, {"error_code": 40403, "message": "Schema not found"}

    def _add(self, subject: str, body: Any) -> tuple[int, Any]:
        schema = _parts(body)
        if subject in self.fixed and self._look_up(subject, body)[0] != 200:
            return 409, {"error_code": 409, "message": "Schema being registered is incompatible with an earlier schema"}
        if schema not in self._schemas:
            self._schemas.append(schema)
        id = self._schemas.index(schema) + 1
        versions = self._subjects.setdefault(subject, [])
        if id not in versions:
            versions.append(id)
        return 200, {"id": id}

    def _version(self, subject: str, version: str) -> tuple[int, Any]:
        versions = self._subjects.get(subject)
        if versions is None:
            return _no_subject(subject)
        number = len(versions) if version == "latest" else int(version)
        if not 0 < number <= len(versions):
            return 404, {"error_code": 40402, "message": f"Version {version} not found."}
        id = versions[number - 1]
        return 200, {"subject": subject, "version": number, "id": id, **self._schemas[id - 1]}


def _no_subject(subject: str) -> tuple[int, Any]:
    return 404, {"error_code": 40401, "message": f"Subject '{subject}' not found."}


def _parts(body: Any) -> dict[str, Any]:
    return {name: body[name] for name in ("schema", "schemaType", "references") if body.get(name)}


class _Handler(Handler):
    registry: SchemaRegistry

    def do_POST(self) -> None:
        self._do(json.loads(self.body()))

    def do_GET(self) -> None:
        self._do(None)

    def _do(self, body: Any) -> None:
        path = [unquote(part) for part in urlsplit(self.path).path.strip("/").split("/")]
        status, answer = self.registry.answer(self.command, path, body, self.headers)
        self.answer(status, json.dumps(answer).encode(), {"Content-Type": JSON})


class Apicurio(Client):
    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/apis/ccompat/v7"

    def answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/subjects", timeout=2):
                return True
        except OSError:
            return False


def _installed() -> Path:
    """Its folder in the user's cache, fetched by Maven if it is not there; skips the test without Maven."""
    place = Path.home() / ".cache" / "spark-ext-tests" / f"apicurio-{VERSION}"
    if not place.exists():
        maven = shutil.which("mvn")
        if maven is None:
            pytest.skip("no Maven, by which Apicurio Registry is fetched")
        artifact = f"io.apicurio:apicurio-registry-app:{VERSION}:tar.gz:all"
        command = [maven, "-q", "dependency:get", f"-Dartifact={artifact}", "-Dtransitive=false"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
        found = list((Path.home() / ".m2").rglob(f"apicurio-registry-app-{VERSION}-all.tar.gz"))
        if done.returncode or not found:
            pytest.skip(f"Maven cannot fetch Apicurio Registry: {done.stdout[-300:]}")
        draft = place.with_name(f"{place.name}.{os.getpid()}")
        with tarfile.open(found[0]) as archive:
            archive.extractall(draft, filter="data")
        draft.rename(place)
    return place


@contextmanager
def apicurio(folder: Path) -> Iterator[Apicurio]:
    """Apicurio Registry, in memory; some seconds to start."""
    place, (port,) = _installed(), free_ports(1)
    java = Path(os.environ["JAVA_HOME"], "bin", "java") if os.environ.get("JAVA_HOME") else "java"
    jar = next(place.glob("*-runner.jar"))
    command = [java, "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx512m", "-jar", jar]
    with (folder / "apicurio.log").open("wb") as log:
        environment = {**os.environ, "QUARKUS_HTTP_PORT": str(port), "QUARKUS_HTTP_HOST": "127.0.0.1"}
        server = subprocess.Popen(
            list(map(str, command)), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
        )
        try:
            made = Apicurio(port)
            until(lambda: made.answers() or server.poll() is not None, "Apicurio Registry is up")
            assert server.poll() is None, (folder / "apicurio.log").read_text(errors="replace")[-2000:]
            yield made
        finally:
            server.kill()
            server.wait()
