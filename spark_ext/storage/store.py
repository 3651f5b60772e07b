"""Folders in object stores, by Arrow's file systems; files that are created once, by conditional writes.

A conditional write (`If-None-Match: *`) creates an object unless one of its name exists. Neither Arrow nor delta-rs
offers it for plain files, so it needs the library obstore, which is delta-rs's own client.
"""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from spark_ext.errors import EnvironmentProblem
from spark_ext.storage.folder import NOBODY, Folder, is_data
from spark_ext.storage.options import StoreOptions, is_s3

if TYPE_CHECKING:
    from obstore.store import ObjectStore
    from pyarrow import Buffer, NativeFile, fs


_ATTEMPTS: Final = 6  # Of a request that the store did not answer or put off; longer waits repeat the whole
_IN_MEMORY: Final = 1 << 20  # bytes of a file that is not worth a temporary copy


def filesystem_of(uri: str, options: Mapping[str, str] | None = None) -> tuple[fs.FileSystem, str]:
    """Arrow's file system of an absolute path or URI, and the path in it. `s3a://`, as Hadoop writes it, is `s3://`."""
    import pyarrow.fs

    if is_s3(uri):
        place = uri.partition("://")[2]
        given = StoreOptions({name.lower(): value for name, value in (options or {}).items()})
        values = given.over(StoreOptions.of_environment(os.environ)).values
        if "aws_endpoint_url" in values or "aws_region" in values:
            return pyarrow.fs.S3FileSystem(**_arguments(values)), place
        # Arrow finds out in which region the bucket is.
        uri = f"s3://{place}"
    found: tuple[fs.FileSystem, str] = pyarrow.fs.FileSystem.from_uri(uri)
    return found


def _arguments(values: Mapping[str, str]) -> dict[str, Any]:
    import pyarrow.fs

    return {
        "access_key": values.get("aws_access_key_id"),
        "secret_key": values.get("aws_secret_access_key"),
        "session_token": values.get("aws_session_token"),
        "anonymous": values.get("aws_skip_signature", "").lower() == "true",
        "endpoint_override": values.get("aws_endpoint_url"),
        "region": values.get("aws_region") or "us-east-1",
        "force_virtual_addressing": values.get("aws_virtual_hosted_style_request", "").lower() == "true",
        # A small file is one request: a process that is killed leaves no upload in parts.
        "allow_delayed_open": True,
        "retry_strategy": pyarrow.fs.AwsStandardS3RetryStrategy(max_attempts=_ATTEMPTS),
    }


class StoreFolder(Folder):
    """See `Folder`."""

    def __init__(self, uri: str, opened: Callable[[], tuple[fs.FileSystem, str]]) -> None:
        super().__init__(uri)
        self._opened = opened

    @cached_property
    def _place(self) -> tuple[fs.FileSystem, str]:
        system, root = self._opened()
        return system, root.rstrip("/")

    @property
    def _system(self) -> fs.FileSystem:
        return self._place[0]

    @property
    def _root(self) -> str:
        return self._place[1]

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}".rstrip("/") if self._root else name

    def below(self, name: str) -> StoreFolder:
        """See `Folder`."""
        return StoreFolder(f"{self.uri.rstrip('/')}/{name}", lambda: (self._system, self._path(name)))

    def read(self, name: str) -> bytes:
        """See `Folder`."""
        with self._system.open_input_stream(self._path(name)) as stream:
            return bytes(stream.read())

    def write(
        self, name: str, content: bytes | str, *, durable: bool = False, private: bool = False, writer: str = NOBODY
    ) -> None:
        """See `Folder`. One request, and durable when it is answered."""
        with self.open_output(name) as stream:
            stream.write(content.encode() if isinstance(content, str) else content)

    def create_once(self, name: str, content: bytes | str, *, durable: bool = False, writer: str = NOBODY) -> bool:
        """See `Folder`. Options of the store come from the environment."""
        require_conditional_writes(self.uri)
        from obstore.exceptions import AlreadyExistsError, BaseError

        try:
            self._conditional.put(name, content.encode() if isinstance(content, str) else content, mode="create")
        except AlreadyExistsError:
            return False
        except BaseError as problem:
            raise OSError(str(problem)) from problem
        return True

    @cached_property
    def _conditional(self) -> ObjectStore:
        from obstore.store import from_url

        if is_s3(self.uri):
            plain = StoreOptions.of_environment(os.environ).values.get("aws_allow_http", "").lower() == "true"
            return from_url(f"s3://{self.uri.partition('://')[2]}", client_options={"allow_http": plain})
        return from_url(self.uri)

    def open_input(self, name: str) -> NativeFile:
        """See `Folder`."""
        return self._system.open_input_file(self._path(name))

    def open_output(self, name: str) -> NativeFile:
        """See `Folder`."""
        return self._system.open_output_stream(self._path(name))

    def mapped(self, name: str) -> Buffer:
        """See `Folder`. A large file is copied to a temporary one."""
        import pyarrow as pa

        with self._system.open_input_stream(self._path(name)) as stream, tempfile.TemporaryFile() as copy:
            content = stream.read(_IN_MEMORY)
            if len(content) < _IN_MEMORY:
                return pa.py_buffer(content)
            copy.write(content)
            shutil.copyfileobj(stream, copy, _IN_MEMORY)
            copy.flush()
            return pa.py_buffer(mmap.mmap(copy.fileno(), 0, access=mmap.ACCESS_READ))

    def sync(self, name: str) -> None:
        """See `Folder`. What an object store shows is durable."""

    def has(self, name: str) -> bool:
        """See `Folder`. One request; `get_file_info` would also list, to find out whether it is a folder."""
        try:
            self.open_input(name).close()
        except FileNotFoundError:
            return False
        return True

    def modified(self, name: str) -> float | None:
        """See `Folder`."""
        found = self._system.get_file_info(self._path(name)).mtime_ns
        return None if found is None else float(found / 1e9)

    def names(self, under: str = "") -> list[str]:
        """See `Folder`."""
        return [info.base_name for info in self._listed(under, recursive=False)]

    def files(self, under: str = "", *, data_only: bool = False) -> Iterator[str]:
        """See `Folder`."""
        from pyarrow import fs

        begin = len(self._root) + 1 if self._root else 0
        for info in self._listed(under, recursive=True):
            name = info.path[begin:] if begin else info.path.lstrip("/")
            if info.type == fs.FileType.File and (not data_only or all(map(is_data, name.split("/")[:-1]))):
                yield name

    def _listed(self, under: str, *, recursive: bool) -> list[fs.FileInfo]:
        from pyarrow import fs

        found: list[fs.FileInfo] = self._system.get_file_info(
            fs.FileSelector(self._path(under), recursive=recursive, allow_not_found=True)
        )
        return found

    def delete(self, name: str) -> None:
        """See `Folder`."""
        with suppress(FileNotFoundError):
            self._system.delete_file(self._path(name))

    def delete_tree(self, under: str = "") -> None:
        """See `Folder`."""
        names = sorted(self.files(under), reverse=True)
        place = self._path(under)
        logs = [name for name in names if "/_delta_log/" in f"/{name}"]
        if not logs and "/" in place:  # not a bucket
            with suppress(FileNotFoundError):
                self._system.delete_dir(place)
            return
        for name in (*(name for name in names if name not in logs), *logs):
            self.delete(name)

    def prune(self, under: str = "") -> None:
        """See `Folder`. An object store has no empty folders."""


def require_conditional_writes(who: str) -> None:
    """Refuse an installation without the library for conditional writes."""
    try:
        import obstore  # noqa: F401
    except ImportError:
        raise EnvironmentProblem(
            "the library obstore is missing: it writes an object on the condition that it is not there yet",
            operator=who,
            kept="nothing was started",
            do="pip install 'spark-ext[object-stores]'",
        ) from None
