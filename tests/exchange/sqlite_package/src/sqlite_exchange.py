"""A kind of exchange in another package: log and rows are tables of one SQLite database in the exchange's folder."""

import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import pyarrow as pa

from spark_ext.errors import CommitError, StateError
from spark_ext.exchange.contract import (
    Decide,
    ExchangeKind,
    ExchangeLog,
    ExchangeMaster,
    ExchangeReader,
    ExchangeWriter,
    Held,
    KindOptions,
    Parts,
)
from spark_ext.exchange.descriptor import Descriptor
from spark_ext.exchange.distribution import BUFFER, collected, cut_out, segment_name
from spark_ext.exchange.entries import Entry, LogState, Run, Segment, not_empty
from spark_ext.exchange.place import DescribedPlace
from spark_ext.exchange.positions import Piece
from spark_ext.failpoints import FailPoint, reach
from spark_ext.model.commits import Task
from spark_ext.storage import LocalFolder

TABLES = """
create table if not exists entries (number integer primary key, body text not null);
create table if not exists state (one integer primary key check (one = 1), body text not null);
create table if not exists segments (name text primary key, content blob not null);
"""


class SqliteOptions(KindOptions):
    timeout: float = 30.0  # s for which a writer waits for another one


class Database:
    """Opened for each use: the folder may be another one by the next."""

    def __init__(self, folder: Path, timeout: float) -> None:
        self.folder, self._file, self._timeout = folder, folder / "exchange.db", timeout

    def make(self) -> None:
        with closing(sqlite3.connect(self._file, timeout=self._timeout)) as db:
            db.executescript(TABLES)

    @contextmanager
    def opened(self) -> Iterator[sqlite3.Connection]:
        """In one transaction; OSError for what the database cannot do."""
        if not self._file.exists():
            raise FileNotFoundError(f"no exchange found at {self.folder}")
        try:
            with closing(sqlite3.connect(self._file, timeout=self._timeout, isolation_level=None)) as db:
                db.execute("begin immediate")
                yield db
                db.execute("commit")
        except sqlite3.DatabaseError as problem:
            raise OSError(f"{self._file}: {problem}") from problem


class SqliteLog(ExchangeLog):
    def __init__(self, database: Database, who: str) -> None:
        self._database, self._who = database, who

    def look(self) -> LogState:
        try:
            with self._database.opened() as db:
                return self._state(db)
        except FileNotFoundError:
            return LogState()

    def _state(self, db: sqlite3.Connection) -> LogState:
        found = db.execute("select body from state").fetchone()
        return LogState() if found is None else LogState.from_json(found[0], self._who)

    def entry(self, number: int) -> Entry | None:
        return self.entries().get(number)

    def entries(self) -> dict[int, Entry]:
        with self._database.opened() as db:
            released, found = self._state(db).released, db.execute("select * from entries order by 1").fetchall()
        return {number: Entry.from_json(body, self._who) for number, body in found if number >= released}

    def append(self, decide: Decide, writer: str) -> LogState | None:
        for _ in range(40):
            state = self.look()
            entry = decide(state)
            if entry is None:
                return None
            with self._database.opened() as db:
                if self._state(db) == state:
                    self._write(db, state.after(entry), {state.last + 1: entry})
                    return state.after(entry)
        raise CommitError("others were faster", operator=self._who, kept="the exchange", do="try again later")

    def seed(self, state: LogState, entries: Mapping[int, Entry], writer: str) -> None:
        with self._database.opened() as db:
            there, last = self._state(db), max(entries)
            if there.last < 0:
                self._write(db, state, entries)
                return
        if there.last < last or self.entry(last) not in (None, entries[last]):
            raise not_empty(there.last, self._who)

    def _write(self, db: sqlite3.Connection, state: LogState, entries: Mapping[int, Entry]) -> None:
        db.executemany(
            "insert into entries values (?, ?)", [(number, entry.to_json()) for number, entry in entries.items()]
        )
        db.execute("insert or replace into state values (1, ?)", [state.to_json()])


class SqliteMaster(ExchangeMaster):
    def __init__(self, database: Database, who: str) -> None:
        self._database, self._log = database, SqliteLog(database, who)
        self._place = DescribedPlace(LocalFolder(database.folder), "sqlite", (), who)

    @property
    def log(self) -> SqliteLog:
        return self._log

    def register(self, wanted: Descriptor) -> Descriptor:
        found = self._place.register(wanted)
        self._database.make()
        return found

    def describe(self) -> Descriptor | None:
        return self._place.describe()

    def delete_released(self) -> None:
        with self._database.opened() as db:
            released, found = self._log._state(db).released, db.execute("select * from entries").fetchall()
            for number, body in found:
                if number < released:
                    reach(FailPoint.EXCHANGE_BEFORE_DELETING)
                    names = [(one.name,) for one in Entry.from_json(body, "entry").segments]
                    db.executemany("delete from segments where name = ?", names)
            db.execute("delete from entries where number < ?", [released])

    def sweep(self, incarnation: int) -> None:
        named = {segment.name for entry in self._log.entries().values() for segment in entry.segments}
        with self._database.opened() as db:
            for (name,) in db.execute("select name from segments").fetchall():
                of = re.match(r"i(\d+)-", name)
                if name not in named and of is not None and 0 < int(of[1]) < incarnation:
                    db.execute("delete from segments where name = ?", [name])

    def keep(self, segment: Segment, folder: str) -> None:
        LocalFolder(Path(folder)).write(f"data/{segment.name}", content(self._database, segment.name))

    def put_back(self, segment: Segment, folder: str) -> Segment:
        kept = LocalFolder(Path(folder)).read(f"data/{segment.name}")
        with self._database.opened() as db:
            db.execute("insert or replace into segments values (?, ?)", [segment.name, kept])
        return segment

    def delete(self) -> None:
        """All is in the folder."""

    def held(self) -> Held:
        state = self._log.look()
        return Held.of(state, self._log.entries() if state.last >= 0 else {})


def content(database: Database, name: str) -> bytes:
    with database.opened() as db:
        found = db.execute("select content from segments where name = ?", [name]).fetchone()
    if found is None:
        raise FileNotFoundError(f"segment {name} does not exist")
    return bytes(found[0])


class SqliteWriter(ExchangeWriter):
    def __init__(self, database: Database) -> None:
        self._database = database

    def write(
        self, batches: Iterator[tuple[pa.RecordBatch, Sequence[int] | None]], task: Task, partitions: int
    ) -> Segment | None:
        out, stream = pa.BufferOutputStream(), None
        runs: list[Run] = []
        for partition, together in collected(batches, task, partitions, BUFFER):
            stream = stream or pa.ipc.new_file(out, together[0].schema)
            stream.write_batch(pa.concat_batches(together))
            runs.append(Run(partition, len(runs), 1, sum(batch.num_rows for batch in together)))
        if stream is None:
            return None
        stream.close()
        name, whole = segment_name(task, "arrow"), out.getvalue().to_pybytes()
        with self._database.opened() as db:
            db.execute("insert into segments values (?, ?)", [name, whole])
        return Segment(name, len(whole), tuple(runs))


class SqliteReader(ExchangeReader):
    def __init__(self, database: Database, who: str) -> None:
        self._database, self._who = database, who

    def read(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        whole = content(self._database, piece.segment)
        try:
            file = pa.ipc.open_file(whole)
            numbers = range(piece.first, piece.first + piece.batches)
            yield from cut_out(map(file.get_batch, numbers), piece.skip, piece.rows)
        except pa.ArrowInvalid as problem:
            what, do = f"segment {piece.segment} is damaged: {problem}", "restore the job from a savepoint"
            raise StateError(what, operator=self._who, kept="nothing of this epoch was committed", do=do) from None


class SqliteKind(ExchangeKind[SqliteOptions]):
    name = "sqlite"
    options_type = SqliteOptions

    def parts(self, place: str, options: SqliteOptions, operator: str) -> Parts:
        database = Database(Path(place), options.timeout)
        return Parts(SqliteMaster(database, operator), SqliteWriter(database), SqliteReader(database, operator))
