"""Tables that are given by name, in the session's own catalogue: found, refused, moved, dropped and made again."""

import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

import spark_ext as sx
from spark_ext.errors import ConfigurationError, SparkExtError, StateError
from spark_ext.jobs.job import Job
from tests.jobs.changes import NEVER
from tests.support.waiting import until

SCHEMA = "named_tables"


class Shop:
    """A job that copies files to the table `daily` of a schema, whose folder is the test's."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        (folder / "in").mkdir()
        for number in range(2):
            pq.write_table(pa.table({"n": [2 * number, 2 * number + 1]}), folder / "in" / f"{number}.parquet")

    def rows(self) -> DataFrame:
        reader = self.spark.readStream.format("files").option("max_rows_per_epoch", "2")
        return reader.options(uid="in", path=str(self.folder / "in"), format="parquet").load()

    def job(self, *, interval: str = "0 s", **options: str) -> Job:
        job = sx.Job(self.spark, "shop", state=self.folder / "state", interval=interval)
        return job.add("copy", self.rows().writeStream.format("delta_2pc").options(uid="out", **options))

    def begin(self, **options: str) -> None:
        running = self.job(interval=NEVER, **options).start()
        until(lambda: min(query.rows for query in running.snapshot().queries) >= 2, "the first epoch")
        running.stop()

    def numbers(self, table: str = f"{SCHEMA}.daily") -> list[int]:
        self.spark.catalog.refreshTable(table)
        return sorted(row.n for row in self.spark.table(table).collect())


@pytest.fixture
def shop(spark: SparkSession, tmp_path: Path) -> Iterator[Shop]:
    spark.sql(f"CREATE SCHEMA {SCHEMA} LOCATION '{tmp_path}/schema'")
    yield Shop(spark, tmp_path)
    spark.sql(f"DROP SCHEMA {SCHEMA} CASCADE")


def refused(shop: Shop, **options: str) -> SparkExtError:
    with pytest.raises(ConfigurationError) as caught:
        shop.job(**options)
    assert "nothing was started" in caught.value.kept
    assert not (shop.folder / "state").exists()
    return caught.value


def test_what_is_no_table_of_deltas_is_refused_by_name(shop: Shop) -> None:
    sql = shop.spark.sql
    sql(f"CREATE TABLE {SCHEMA}.texts (n bigint) USING parquet")
    sql(f"CREATE VIEW {SCHEMA}.some AS SELECT 1L AS n")
    sql("CREATE TEMPORARY VIEW passing AS SELECT 1L AS n")
    assert "has the provider 'parquet'" in refused(shop, table=f"{SCHEMA}.texts").what
    assert f"'{SCHEMA}.some' is a view" in refused(shop, table=f"{SCHEMA}.some").what
    assert "temporary view" in refused(shop, table="passing").what
    assert "table 'nowhere.daily' is not in" in refused(shop, table="nowhere.daily").what
    assert "out/daily" in refused(shop, table="out/daily").what
    assert "both set" in refused(shop, table=f"{SCHEMA}.texts", path="out").what
    with pytest.raises(ConfigurationError, match="is a view"):
        sx.table_path(shop.spark, f"{SCHEMA}.some")
    # Without a job nobody can ask the catalogue.
    writer = shop.rows().writeStream.format("delta_2pc").options(uid="out", table=f"{SCHEMA}.texts")
    with pytest.raises(Exception, match="without a job give the table's location"):
        writer.option("checkpointLocation", str(shop.folder / "checkpoint")).start().awaitTermination(60)


@pytest.mark.slow(25, "starts a job five times")
def test_a_table_is_the_same_by_name_and_path_but_no_other_is(shop: Shop) -> None:
    create = re.search(r'"(CREATE TABLE .*)"', refused(shop, table=f"{SCHEMA}.daily").do)
    assert create is not None
    place = f"{shop.folder}/daily 1"
    shop.spark.sql(f"{create[1]} LOCATION '{place}'")
    assert sx.table_path(shop.spark, f"spark_catalog.{SCHEMA}.`daily`") == place
    shop.begin(table=f"{SCHEMA}.daily")
    assert len(shop.numbers()) == 2

    # The name leads to another table: neither is written to.
    shop.spark.sql(f"CREATE TABLE {SCHEMA}.other (n bigint) USING delta LOCATION '{shop.folder}/other'")
    shop.spark.sql(f"ALTER TABLE {SCHEMA}.daily RENAME TO {SCHEMA}.kept")
    shop.spark.sql(f"ALTER TABLE {SCHEMA}.other RENAME TO {SCHEMA}.daily")
    with pytest.raises(SparkExtError, match="path"):
        shop.job(table=f"{SCHEMA}.daily").run(progress=False)
    assert shop.numbers() == []

    # Dropped and made again, at the same place.
    shop.spark.sql(f"DROP TABLE {SCHEMA}.daily")
    shop.spark.sql(f"DROP TABLE {SCHEMA}.kept")
    aside = shop.folder / "aside"
    Path(place).rename(aside)
    shop.spark.sql(f"CREATE TABLE {SCHEMA}.daily (n bigint) USING delta LOCATION '{place}'")
    with pytest.raises(StateError, match="not the target that was claimed"):
        shop.job(table=f"{SCHEMA}.daily").run(progress=False)
    assert shop.numbers() == []

    # Put back; from now on by its path: the same table, and it continues.
    Path(place).rename(shop.folder / "made again")
    aside.rename(place)
    assert shop.job(path=place).run(progress=False).finished
    assert shop.numbers() == [0, 1, 2, 3]
    again = shop.job(table=f"{SCHEMA}.daily").run(progress=False)
    assert again.finished and again.rows == 0
