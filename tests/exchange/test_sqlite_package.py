"""A kind of exchange in a package of its own: it passes the suite, and a job finds it by its entry point alone."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from deltalake import DeltaTable

import spark_ext as sx
from spark_ext.exchange import kinds
from spark_ext.testing.children import Child
from spark_ext.testing.exchange_contract import ExchangeContract
from spark_ext.testing.exchange_driver import Place
from tests.exchange.sqlite_package import installed


@dataclass(frozen=True)
class SqlitePlace(Place):
    def stored(self) -> set[str]:
        with closing(sqlite3.connect(Path(self.path, "exchange.db"))) as db:
            return {name for (name,) in db.execute("select name from segments")}

    def damage(self, segment: str) -> None:
        self._change("update segments set content = substr(content, 1, length(content) - 20) where name = ?", segment)

    def lose(self, segment: str) -> None:
        self._change("delete from segments where name = ?", segment)

    def _change(self, statement: str, segment: str) -> None:
        with closing(sqlite3.connect(Path(self.path, "exchange.db"))) as db, db:
            db.execute(statement, [segment])


@pytest.fixture(autouse=True)
def package(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(kinds, "_known", {})
    with installed():
        yield


@pytest.mark.slow(0.6, "processes that are killed")
class TestSqlite(ExchangeContract):
    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        return SqlitePlace("sqlite", str(tmp_path / "flights"))


def run_job(folder: Path) -> None:
    spark = sx.session("sqlite-exchange")
    job = sx.Job(spark, "two", state=folder / "state", exchange_kind="sqlite", exchange_options={"timeout": 20})
    rows = spark.readStream.format("datagen").options(uid="rows", rows=300, max_rows_per_epoch=100).load()
    x = job.exchange("x", partitions=2, key="key")
    job.add("load", x.write(rows))
    read = x.read("x-in").writeStream.format("delta_2pc").options(uid="table", path=str(folder / "table"))
    assert job.add("copy", read).run(progress=False).finished


@pytest.mark.slow(25, "a JVM of its own, whose workers have the package")
def test_x8_a_job_uses_a_kind_of_another_package(tmp_path: Path) -> None:
    with Child(run_job, tmp_path) as child:
        said = child.wait()
        assert child.poll() == 0, said
    assert DeltaTable(str(tmp_path / "table")).to_pyarrow_table().num_rows == 300
    place = SqlitePlace("sqlite", str(tmp_path / "state" / "exchanges" / "x"))
    about, held = kinds.described_at(place.path, "x"), place.parts().master.held()
    assert about is not None and (about.kind, about.options) == ("sqlite", {"timeout": "20"})
    assert (held.rows, held.sealed, place.stored()) == (0, True, set())
