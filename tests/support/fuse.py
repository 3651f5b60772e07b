"""A file system in user space that passes everything on to a folder, but for what it is told to refuse.

`refusing_disk` mounts one for a test; this file is its server too. The kernel's protocol is spoken here, since its
usual library is not a Python package. See fuse(4), and `linux/fuse.h` for the numbers and structures.
"""

import ctypes
import errno
import os
import stat
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest

REFUSALS: Final = ("links", "append", "replace")
"""Hard links; writes anywhere but at the end of a file that was empty when it was opened; renames over a file."""

_IN: Final = struct.Struct("<IIQQIIIHH")  # length, operation, request, node, user, group, process, and two more
_OUT: Final = struct.Struct("<IiQ")
_MAX_WRITE: Final = 1 << 20
_NO_SUID_NO_DEVICES: Final = 0x2 | 0x4
_ROOT: Final = 1
_NO_REPLY: Final = (2, 36, 42)  # FORGET, INTERRUPT, BATCH_FORGET


@contextmanager
def refusing_disk(place: Path, *refused: str) -> Iterator[Path]:
    """A file system that refuses some of `REFUSALS`, in a new directory; skips the test if it cannot be mounted."""
    folder = place.with_name(f"{place.name}-content")
    folder.mkdir()
    place.mkdir()
    command: list[str | Path] = [sys.executable, __file__, folder, place, *refused]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            if server.stdout.readline() != "mounted\n":
                server.wait()
                pytest.skip("this user is not permitted to mount a file system")
            yield place
        finally:
            # Its server ends with the mount; a lazy one, since a JVM may still hold a file open.
            subprocess.run(["umount", "-l", place], check=server.poll() is None)
            server.kill()
            place.rmdir()


class _Server:
    def __init__(self, device: int, folder: str, refused: set[str]) -> None:
        self.device, self.refused = device, refused
        root = os.open(folder, os.O_PATH)
        # Nodes are descriptors of O_PATH, which stay right when a file is renamed.
        self.nodes, self.lookups = {_ROOT: root}, {_ROOT: 1}
        self.known = {self._identity(root): _ROOT}
        self.listed: dict[int, list[str]] = {}
        self.written: dict[int, int | None] = {}  # by handle; None: the file was not empty
        self.last = _ROOT
        self.operations: dict[int, Callable[[int, bytes], bytes]] = {
            1: self.lookup, 2: self.forget, 3: self.getattr, 4: self.setattr,
            9: self.mkdir, 10: self.unlink, 11: self.rmdir, 12: self.rename, 13: self.link, 14: self.open,
            15: self.read, 16: self.write, 17: self.statfs, 18: self.release, 20: self.fsync, 25: self.nothing,
            26: self.init, 27: self.opendir, 28: self.readdir, 29: self.closedir, 30: self.nothing, 35: self.create,
            36: self.nothing, 42: self.batch_forget, 45: self.rename2,
        }  # fmt: skip

    def serve(self) -> None:
        while True:
            try:
                request = os.read(self.device, _MAX_WRITE + 4096)
            except OSError as problem:
                if problem.errno == errno.ENODEV:  # unmounted
                    return
                if problem.errno in (errno.ENOENT, errno.EINTR, errno.EAGAIN):
                    continue
                raise
            _, operation, unique, node, *_ = _IN.unpack_from(request)
            failed, reply = 0, b""
            try:
                called = self.operations.get(operation)
                if called is None:
                    raise OSError(errno.ENOSYS, "not implemented")
                reply = called(node, request[_IN.size :])
            except OSError as problem:
                failed = problem.errno or errno.EIO
            if operation not in _NO_REPLY:
                with suppress(FileNotFoundError):  # the request was interrupted
                    os.write(self.device, _OUT.pack(_OUT.size + len(reply), -failed, unique) + reply)

    def init(self, _node: int, body: bytes) -> bytes:
        ahead = struct.unpack_from("<III", body)[2]
        truncates, big_writes = 1 << 3, 1 << 5
        return struct.pack("<IIIIHHIIHH32x", 7, 31, ahead, truncates | big_writes, 12, 9, _MAX_WRITE, 1, 0, 0)

    def nothing(self, _node: int, _body: bytes) -> bytes:
        return b""

    @staticmethod
    def _identity(node: int) -> tuple[int, int]:
        found = os.fstat(node)
        return found.st_dev, found.st_ino

    def _file(self, node: int) -> str:
        return f"/proc/self/fd/{self.nodes[node]}"

    def _attributes(self, node: int) -> bytes:
        one = os.fstat(self.nodes[node])
        times = (one.st_atime_ns, one.st_mtime_ns, one.st_ctime_ns)
        return struct.pack(
            "<QQQQQQIIIIIIIIII", one.st_ino, one.st_size, one.st_blocks, *(time // 10**9 for time in times),
            *(time % 10**9 for time in times), one.st_mode, one.st_nlink, one.st_uid, one.st_gid, 0, one.st_blksize, 0,
        )  # fmt: skip

    def lookup(self, node: int, body: bytes) -> bytes:
        found = os.open(_text(body), os.O_PATH | os.O_NOFOLLOW, dir_fd=self.nodes[node])
        number = self.known.get(self._identity(found))
        if number is None:
            number = self.last = self.last + 1
            self.nodes[number], self.known[self._identity(found)] = found, number
        else:
            os.close(found)
        self.lookups[number] = self.lookups.get(number, 0) + 1
        # Nothing is cached: not names, not attributes.
        return struct.pack("<QQQQII", number, 0, 0, 0, 0, 0) + self._attributes(number)

    def _forget(self, node: int, number: int) -> None:
        self.lookups[node] -= number
        if node != _ROOT and self.lookups[node] == 0:
            del self.lookups[node], self.known[self._identity(self.nodes[node])]
            os.close(self.nodes.pop(node))

    def forget(self, node: int, body: bytes) -> bytes:
        self._forget(node, struct.unpack_from("<Q", body)[0])
        return b""

    def batch_forget(self, _node: int, body: bytes) -> bytes:
        for node, number in struct.iter_unpack("<QQ", body[8:]):
            self._forget(node, number)
        return b""

    def getattr(self, node: int, _body: bytes) -> bytes:
        return struct.pack("<QII", 0, 0, 0) + self._attributes(node)

    def setattr(self, node: int, body: bytes) -> bytes:
        valid, _, _, size, _, accessed, modified, _, accessed_ns, modified_ns, _, mode, _, user, group, _ = (
            struct.unpack_from("<IIQQQQQQIIIIIIII", body)
        )
        file = self._file(node)
        if valid & 1:
            Path(file).chmod(stat.S_IMODE(mode))
        if valid & 6:
            os.chown(file, user if valid & 2 else -1, group if valid & 4 else -1)
        if valid & 8:
            if size and "append" in self.refused:
                raise OSError(errno.EOPNOTSUPP, "only written from the start to the end")
            os.truncate(file, size)
        if valid & 0x30:
            one = Path(file).stat()
            read = accessed * 10**9 + accessed_ns if valid & 0x10 else one.st_atime_ns
            os.utime(file, ns=(read, modified * 10**9 + modified_ns if valid & 0x20 else one.st_mtime_ns))
        return self.getattr(node, b"")

    def mkdir(self, node: int, body: bytes) -> bytes:
        os.mkdir(_text(body[8:]), struct.unpack_from("<I", body)[0], dir_fd=self.nodes[node])
        return self.lookup(node, body[8:])

    def unlink(self, node: int, body: bytes) -> bytes:
        os.unlink(_text(body), dir_fd=self.nodes[node])
        return b""

    def rmdir(self, node: int, body: bytes) -> bytes:
        os.rmdir(_text(body), dir_fd=self.nodes[node])
        return b""

    def rename(self, node: int, body: bytes) -> bytes:
        return self._renamed(node, struct.unpack_from("<Q", body)[0], body[8:])

    def rename2(self, node: int, body: bytes) -> bytes:
        target, flags = struct.unpack_from("<QI", body)
        if flags:
            raise OSError(errno.EINVAL, "no flags of a rename")
        return self._renamed(node, target, body[16:])

    def _renamed(self, node: int, target: int, names: bytes) -> bytes:
        old, new = (name.decode() for name in names.split(b"\0")[:2])
        if "replace" in self.refused:
            with suppress(FileNotFoundError):
                os.stat(new, dir_fd=self.nodes[target], follow_symlinks=False)
                raise OSError(errno.EOPNOTSUPP, "a file is there")
        os.rename(old, new, src_dir_fd=self.nodes[node], dst_dir_fd=self.nodes[target])
        return b""

    def link(self, node: int, body: bytes) -> bytes:
        if "links" in self.refused:
            raise OSError(errno.EPERM, "no hard links")
        source = struct.unpack_from("<Q", body)[0]
        os.link(self._file(source), _text(body[8:]), dst_dir_fd=self.nodes[node], follow_symlinks=True)
        return self.lookup(node, body[8:])

    def _opened(self, handle: int, flags: int) -> bytes:
        if flags & (os.O_WRONLY | os.O_RDWR):
            self.written[handle] = 0 if os.fstat(handle).st_size == 0 else None
        return struct.pack("<QII", handle, 0, 0)

    def _refuse_append(self, flags: int) -> None:
        if flags & os.O_APPEND and "append" in self.refused:
            raise OSError(errno.EOPNOTSUPP, "no append")

    def open(self, node: int, body: bytes) -> bytes:
        flags = struct.unpack_from("<I", body)[0]
        self._refuse_append(flags)
        # The kernel says where an append goes.
        return self._opened(os.open(self._file(node), flags & ~(os.O_NOFOLLOW | os.O_APPEND)), flags)

    def create(self, node: int, body: bytes) -> bytes:
        flags, mode = struct.unpack_from("<II", body)
        self._refuse_append(flags)
        handle = os.open(_text(body[16:]), flags & ~os.O_APPEND | os.O_CREAT, mode, dir_fd=self.nodes[node])
        return self.lookup(node, body[16:]) + self._opened(handle, flags)

    def read(self, _node: int, body: bytes) -> bytes:
        handle, offset, size = struct.unpack_from("<QQI", body)
        return os.pread(handle, size, offset)

    def write(self, _node: int, body: bytes) -> bytes:
        handle, offset, size = struct.unpack_from("<QQI", body)
        if "append" in self.refused:
            if self.written[handle] != offset:
                raise OSError(errno.EOPNOTSUPP, "only written from the start to the end")
            self.written[handle] = offset + size
        return struct.pack("<II", os.pwrite(handle, body[40 : 40 + size], offset), 0)

    def release(self, _node: int, body: bytes) -> bytes:
        handle = struct.unpack_from("<Q", body)[0]
        self.written.pop(handle, None)
        os.close(handle)
        return b""

    def fsync(self, _node: int, body: bytes) -> bytes:
        os.fsync(struct.unpack_from("<Q", body)[0])
        return b""

    def statfs(self, node: int, _body: bytes) -> bytes:
        one = os.statvfs(self._file(node))
        numbers = (one.f_blocks, one.f_bfree, one.f_bavail, one.f_files, one.f_ffree)
        return struct.pack("<QQQQQIII28x", *numbers, one.f_bsize, one.f_namemax, one.f_frsize)

    def opendir(self, node: int, _body: bytes) -> bytes:
        handle = os.open(self._file(node), os.O_RDONLY | os.O_DIRECTORY)
        self.listed[handle] = os.listdir(handle)  # noqa: PTH208 - of a descriptor
        return struct.pack("<QII", handle, 0, 0)

    def readdir(self, _node: int, body: bytes) -> bytes:
        handle, offset, size = struct.unpack_from("<QQI", body)
        found = b""
        for number, name in enumerate(self.listed[handle][offset:], offset + 1):
            text = name.encode()
            entry = struct.pack("<QQII", number, number, len(text), 0) + text  # of an unknown kind: it is looked up
            entry += bytes(-len(entry) % 8)
            if len(found) + len(entry) > size:
                break
            found += entry
        return found

    def closedir(self, _node: int, body: bytes) -> bytes:
        handle = struct.unpack_from("<Q", body)[0]
        del self.listed[handle]
        os.close(handle)
        return b""


def _text(body: bytes) -> str:
    return body.split(b"\0", 1)[0].decode()


def _main(folder: str, place: str, *refused: str) -> None:
    assert set(refused) <= set(REFUSALS), refused
    device = os.open("/dev/fuse", os.O_RDWR)
    library = ctypes.CDLL(None, use_errno=True)
    options = f"fd={device},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()},allow_other".encode()
    if library.mount(b"refusing", place.encode(), b"fuse", _NO_SUID_NO_DEVICES, options) != 0:
        raise OSError(ctypes.get_errno(), f"cannot mount {place}")
    print("mounted", flush=True)
    os.umask(0)  # the kernel has applied that of the caller
    _Server(device, folder, set(refused)).serve()


if __name__ == "__main__":
    _main(*sys.argv[1:])
