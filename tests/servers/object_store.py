"""A real server with the interface of S3, in a process of its own: moto, which keeps all objects in memory."""

import itertools
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from tests.servers.ports import free_ports
from tests.servers.watchdog import Watched
from tests.support.waiting import until

KEY, SECRET, REGION = "test-key-id", "s3cret-Of-A-Bucket", "us-east-1"


@dataclass(frozen=True)
class Bucket:
    endpoint: str
    name: str

    @property
    def uri(self) -> str:
        return f"s3://{self.name}"

    @property
    def options(self) -> dict[str, str]:
        return {
            "aws_access_key_id": KEY, "aws_secret_access_key": SECRET, "aws_endpoint_url": self.endpoint,
            "aws_region": REGION, "aws_allow_http": "true",
        }  # fmt: skip

    @property
    def environment(self) -> dict[str, str]:
        return {name.upper(): value for name, value in self.options.items()}

    def use(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in self.environment.items():
            monkeypatch.setenv(name, value)

    @cached_property
    def client(self) -> Any:
        import boto3

        return boto3.client(
            "s3", endpoint_url=self.endpoint, aws_access_key_id=KEY, aws_secret_access_key=SECRET, region_name=REGION
        )

    def keys(self, prefix: str = "") -> list[str]:
        """The keys of all objects, markers of folders left out."""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.name, Prefix=prefix)
        found = [item["Key"] for page in pages for item in page.get("Contents", ())]
        return [key for key in found if not key.endswith("/")]

    def get(self, key: str) -> bytes:
        return bytes(self.client.get_object(Bucket=self.name, Key=key)["Body"].read())

    def put(self, key: str, content: bytes) -> None:
        self.client.put_object(Bucket=self.name, Key=key, Body=content)

    def uploads(self) -> list[str]:
        """The keys of uploads in parts that were neither completed nor aborted."""
        return [item["Key"] for item in self.client.list_multipart_uploads(Bucket=self.name).get("Uploads", ())]


class ObjectStore:
    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="spark-ext-s3-"))
        self._watched = Watched(self.folder)
        self._process: subprocess.Popen[bytes] | None = None
        self._numbers = itertools.count()
        self.port = free_ports(1)[0]

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        self._process = self._watched.start(command, cwd=self.folder)
        until(self._answers, "the object store answers")

    def _answers(self) -> bool:
        assert self._process is not None and self._process.poll() is None, (self.folder / "server.log").read_text()
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            return False
        return True

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def bucket(self, endpoint: str | None = None) -> Bucket:
        """A new bucket, whose users reach it at `endpoint`, by default the server itself."""
        name = f"bucket-{os.getpid()}-{next(self._numbers)}"
        Bucket(self.endpoint, name).client.create_bucket(Bucket=name)
        return Bucket(endpoint or self.endpoint, name)

    def close(self) -> None:
        if self._process is not None:
            self.kill()
        self._watched.close()


@contextmanager
def running() -> Iterator[ObjectStore]:
    store = ObjectStore()
    try:
        store.start()
        yield store
    finally:
        store.close()


@pytest.fixture(scope="session")
def object_store() -> Iterator[ObjectStore]:
    with running() as store:
        yield store


@pytest.fixture
def bucket(object_store: ObjectStore) -> Bucket:
    return object_store.bucket()
