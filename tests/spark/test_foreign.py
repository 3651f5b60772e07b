"""What is relied on of queries that others have started, as Spark has them."""

from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark_ext.observing.foreign_query import failure_of
from spark_ext.spark.backend.classic import CLASSIC
from spark_ext.spark.backend.listeners import listening, wrapped


class Lending:
    """Gives a property to the tasks of each query that is started."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self.lent: list[bool] = []

    def started(self, query_id: str, run_id: str) -> None:
        found = CLASSIC.query(self.spark.streams, query_id)
        assert found is not None and str(found.runId) == run_id
        self.lent.append(CLASSIC.set_task_properties(self.spark, query_id, {"tests.lent": query_id}))

    def progressed(self, report: str) -> None:
        pass

    def terminated(self, query_id: str, run_id: str) -> None:
        pass


def test_a_property_lent_at_the_start_reaches_only_the_tasks(spark: SparkSession, tmp_path: Path) -> None:
    @F.udf("string")
    def lent(n: int) -> str | None:
        from pyspark import TaskContext

        task = TaskContext.get()
        return None if task is None else task.getLocalProperty("tests.lent")

    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("1\n")
    rows = spark.readStream.text(str(tmp_path / "in")).select(lent(F.length("value")).alias("lent"))
    lending = Lending(spark)
    with listening(spark, lending):
        query = rows.writeStream.format("memory").queryName("lent").trigger(availableNow=True).start()
        assert CLASSIC.ends_by_itself(query)
        query.awaitTermination()
    assert lending.lent == [True]
    assert [row.lent for row in spark.table("lent").collect()] == [str(query.id)]
    assert spark.sparkContext.getLocalProperty("tests.lent") is None
    assert not CLASSIC.set_task_properties(spark, str(query.id), {}), "from another thread than the query's"
    assert failure_of(query) is None and CLASSIC.query(spark.streams, str(query.id)) is None


def test_whether_a_listener_is_there_and_a_query_ends_by_itself(spark: SparkSession) -> None:
    listener = wrapped(Lending(spark))
    assert not CLASSIC.has_listener(spark.streams, listener) and not CLASSIC.is_stopping(spark)
    spark.streams._jsqm.addListener(listener)
    assert CLASSIC.has_listener(spark.streams, listener)
    spark.streams._jsqm.removeListener(listener)
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    query = rows.writeStream.format("noop").queryName("made").start()
    assert not CLASSIC.ends_by_itself(query)
    query.stop()
