"""A real HTTP receiver with a memory: rows and idempotency keys in one SQLite transaction. Killed and started at will.

It obeys the contract of `docs/http_2pc.md`. With `memory="newest"` it keeps the keys of each sink's newest epoch only.
`behave({"status": 503, "headers": {...}}, {"cut": True})` says what it does to the next requests: `status` and
`headers` answer without effect, `delay` waits seconds before the effect, `cut` has the effect and closes instead of
answering.
"""

import gzip
import hashlib
import json
import sqlite3
import sys
import threading
import time
import urllib.request
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.servers.handler import Handler, Server, end_with_parent
from tests.servers.ports import free_ports
from tests.support.processes import Tree
from tests.support.waiting import until

REFUSED = "refused"  # a request with a row of this name is refused for good, without effect
TABLES = """
CREATE TABLE IF NOT EXISTS keys (
    stream TEXT, epoch INTEGER, key TEXT, digest TEXT, repeats INTEGER DEFAULT 0, PRIMARY KEY (stream, key)
);
CREATE TABLE IF NOT EXISTS incarnations (stream TEXT PRIMARY KEY, newest INTEGER);
CREATE TABLE IF NOT EXISTS rows (stream TEXT, epoch INTEGER, chunk INTEGER, path TEXT, row TEXT);
CREATE TABLE IF NOT EXISTS requests (
    key TEXT, status INTEGER, content_type TEXT, authorization TEXT, size INTEGER, last TEXT, other TEXT
);
"""


class Store:
    def __init__(self, path: str, memory: str) -> None:
        self._lock = threading.Lock()
        self._memory = memory
        self._database = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._database.execute("PRAGMA journal_mode=WAL")
        self._database.executescript(TABLES)

    def take(self, headers: Any, path: str, body: bytes) -> tuple[int, str]:
        stream = "/".join(headers.get(f"Spark-Ext-{part}", "") for part in ("Job", "Sink", "Lineage", "Query"))
        key, incarnation = headers["Idempotency-Key"], int(headers["Spark-Ext-Incarnation"])
        epoch, chunk = int(headers["Spark-Ext-Epoch"]), int(headers["Spark-Ext-Chunk"])
        digest = hashlib.sha256(body).hexdigest()
        with self._lock:
            run = self._database.execute
            run("BEGIN IMMEDIATE")
            try:
                newest = run("SELECT newest FROM incarnations WHERE stream = ?", (stream,)).fetchone()
                if newest is not None and incarnation < newest[0]:
                    return 412, f"incarnation {newest[0]} has been here"
                run("INSERT OR REPLACE INTO incarnations VALUES (?, ?)", (stream, incarnation))
                held = run("SELECT digest FROM keys WHERE stream = ? AND key = ?", (stream, key)).fetchone()
                if held is not None:
                    run("UPDATE keys SET repeats = repeats + 1 WHERE stream = ? AND key = ?", (stream, key))
                    return (200, "taken before") if held[0] == digest else (422, "this key came with other rows")
                lines = json.loads(body) if body[:1] == b"[" else [json.loads(line) for line in body.splitlines()]
                if any(line.get("name") == REFUSED for line in lines):
                    return 422, f"the name {REFUSED} is not taken"
                if self._memory == "newest":
                    last = run("SELECT max(epoch) FROM keys WHERE stream = ?", (stream,)).fetchone()[0]
                    if last is not None and epoch < last:
                        return 200, "an epoch that was complete"
                    run("DELETE FROM keys WHERE stream = ? AND epoch < ?", (stream, epoch))
                run("INSERT INTO keys (stream, epoch, key, digest) VALUES (?, ?, ?, ?)", (stream, epoch, key, digest))
                self._database.executemany(
                    "INSERT INTO rows VALUES (?, ?, ?, ?, ?)",
                    [(stream, epoch, chunk, path, json.dumps(line)) for line in lines],
                )
                return 201, "taken"
            finally:
                run("COMMIT")

    def note(self, status: int, headers: Any, size: int) -> None:
        with self._lock:
            first = (headers["Idempotency-Key"], status, headers["Content-Type"], headers["Authorization"])
            values = (*first, size, headers["Spark-Ext-Last-Chunk"], headers["X-Other"])
            self._database.execute("INSERT INTO requests VALUES (?, ?, ?, ?, ?, ?, ?)", values)


class ReceiverHandler(Handler):
    store: Store
    todo: list[dict[str, Any]] = []

    def do_PUT(self) -> None:
        if self.path != "/behaviour":
            self.do_POST()
            return
        self.todo[:] = json.loads(self.body())
        self.answer(200, b"so be it")

    def do_POST(self) -> None:
        body = self.body()
        if self.headers["Content-Encoding"] == "gzip":
            body = gzip.decompress(body)
        do = self._next()
        time.sleep(do.get("delay", 0))
        if "status" in do:
            self.store.note(do["status"], self.headers, len(body))
            self.answer(do["status"], do.get("text", "").encode(), do.get("headers"))
            return
        status, text = self.store.take(self.headers, self.path, body)
        self.store.note(status, self.headers, len(body))
        if do.get("cut"):
            self.close_connection = True
            return
        self.answer(status, text.encode())

    do_PATCH = do_POST

    def _next(self) -> dict[str, Any]:
        if not self.todo:
            return {}
        return self.todo[0] if self.todo[0].get("always") else self.todo.pop(0)


def serve(folder: Path, port: int, memory: str) -> None:
    ReceiverHandler.store = Store(str(folder / "receiver.sqlite"), memory)
    server = Server(("127.0.0.1", port), ReceiverHandler)
    draft = folder / ".port"
    draft.write_text(str(server.server_port))
    draft.rename(folder / "port")
    end_with_parent()
    server.serve_forever()


class Receiver:
    """A receiver in a process of its own; at the end of the `with` it is gone, its folder stays.

    It remembers `all` keys, or those of each sink's `newest` epoch.
    """

    def __init__(self, folder: Path, memory: str = "all") -> None:
        self.folder, self._memory = folder, memory
        self._tree: Tree | None = None
        self.port = 0

    def __enter__(self) -> "Receiver":
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._tree is not None:
            self._tree.kill_all()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/rows"

    def start(self) -> None:
        self.port = self.port or free_ports(1)[0]
        self.folder.mkdir(parents=True, exist_ok=True)
        said = self.folder / "port"
        said.unlink(missing_ok=True)
        given = [str(self.folder), str(self.port), self._memory]
        tree = self._tree = Tree([sys.executable, "-m", "tests.servers.receiver", *given], self.folder / "receiver.log")
        until(lambda: said.exists() or tree.poll() is not None, "the receiver is up")
        assert tree.poll() is None, tree.text()
        self.port = int(said.read_text())

    def kill(self) -> None:
        assert self._tree is not None
        self._tree.kill_all()

    def behave(self, *actions: dict[str, Any]) -> None:
        """What happens to the next requests, one action each; one with `always` stays."""
        behave(self.url, *actions)

    def forget(self) -> None:
        self.behave()
        with _database(self.folder) as database:
            for table in ("keys", "incarnations", "rows", "requests"):
                database.execute(f"DELETE FROM {table}")
            database.commit()

    def rows(self) -> list[dict[str, Any]]:
        return rows(self.folder)

    def requests(self) -> list[dict[str, Any]]:
        return _select(self.folder, "SELECT * FROM requests ORDER BY rowid")

    def repeats(self) -> int:
        return int(_select(self.folder, "SELECT coalesce(sum(repeats), 0) AS n FROM keys")[0]["n"])


def behave(url: str, *actions: dict[str, Any]) -> None:
    """As `Receiver.behave`, by the address alone."""
    place = url.partition("/rows")[0] + "/behaviour"
    request = urllib.request.Request(place, json.dumps(actions).encode(), method="PUT")
    urllib.request.urlopen(request, timeout=10).close()


def rows(folder: Path, path: str = "") -> list[dict[str, Any]]:
    """As `Receiver.rows`, also before it runs; those that came to an address below `/rows`, if it is given."""
    found = _select(folder, "SELECT path, row FROM rows ORDER BY rowid")
    return [json.loads(one["row"]) for one in found if not path or one["path"] == f"/rows/{path}"]


def _select(folder: Path, query: str) -> list[dict[str, Any]]:
    with _database(folder) as database:
        database.row_factory = sqlite3.Row
        return [dict(row) for row in database.execute(query)]


def _database(folder: Path) -> closing[sqlite3.Connection]:
    return closing(sqlite3.connect(folder / "receiver.sqlite", timeout=30))


if __name__ == "__main__":
    serve(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
