"""Further: bugs of user code, rows that do not fit, and what cannot be pickled."""

from __future__ import annotations

import gzip
import importlib
import uuid
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from pydantic import BaseModel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupState

from tests.failures.corpus import case
from tests.failures.running import fails, into_noop, numbers


@case("others.shipped_module", type="USER_CODE", origin="user", decision="stop")
def shipped_module(spark: SparkSession, folder: Path) -> None:
    name = f"rates_{uuid.uuid4().hex}"
    (folder / f"{name}.py").write_text("""
RATES = {"EUR": 1.0, "USD": 0.9}

class RateError(Exception):
    pass

def rate_of(currency):
    try:
        return RATES[currency]
    except KeyError as error:
        raise RateError("Connection refused: the rates of " + currency + " are unavailable") from error
""")
    spark.sparkContext.addPyFile(str(folder / f"{name}.py"))

    @F.udf("double")
    def in_euro(value: int) -> float:
        rates = importlib.import_module(name)
        return value * rates.rate_of("XBT")

    into_noop(numbers(spark).select(in_euro("value")))


@case("others.batch_query", type="USER_CODE", origin="user", decision="stop", line="text.removeprefix")
def batch_query(spark: SparkSession, folder: Path) -> None:
    @F.pandas_udf("string")  # type: ignore[call-overload, untyped-decorator]
    def clean(names: pd.Series) -> pd.Series:
        return names.map(lambda text: text.removeprefix("customer-"))

    def write(batch: DataFrame, epoch: int) -> None:
        named = batch.select(F.when(F.col("value") < 2, F.format_string("customer-%d", "value")).alias("name"))
        named.select(clean("name").alias("name")).distinct().write.parquet(str(folder / f"epoch={epoch}"))

    fails(numbers(spark).writeStream.foreachBatch(write))


@case("others.stateful_lie", type="USER_CODE", origin="user", decision="stop", line="raise ValueError(f")
def stateful_lie(spark: SparkSession, folder: Path) -> None:
    def follow(key: tuple[int], orders: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        expected = state.get[0] if state.exists else key[0] + 2
        seen = sum(len(part) for part in orders)
        if seen != expected:
            raise ValueError(f"read timed out: state store of order {key[0]} holds {expected} items, not {seen}")
        yield pd.DataFrame({"order": [key[0]], "items": [seen]})

    into_noop(
        numbers(spark)
        .withColumn("order", F.col("value") % 1)
        .groupBy("order")
        .applyInPandasWithState(follow, "order long, items long", "items long", "append", "NoTimeout")
    )


@case(
    "others.pydantic_json", type="USER_DATA", origin="dependency", decision="stop",
    line="model_validate_json",
)  # fmt: skip
def pydantic_json(spark: SparkSession, folder: Path) -> None:
    @F.udf("string")
    def customer_of(value: int) -> str:
        class Order(BaseModel):
            customer: str

        return Order.model_validate_json(f'{{"customer": "c{value}"').customer

    into_noop(numbers(spark).select(customer_of("value")))


@case("others.gzip_body", type="USER_DATA", origin="user", decision="stop", line="gzip.decompress(body)")
def gzip_body(spark: SparkSession, folder: Path) -> None:
    @F.udf("string")
    def unpack(body: bytes) -> str:
        return gzip.decompress(body).decode()

    into_noop(numbers(spark).select(unpack(F.encode(F.col("value").cast("string"), "UTF-8"))))


@case("others.generated_column", type="USER_DATA", origin="library", decision="stop")
def generated_column(spark: SparkSession, folder: Path) -> None:
    spark.sql(
        f"CREATE TABLE delta.`{folder}/table` (value LONG, half LONG GENERATED ALWAYS AS (CAST(value DIV 2 AS LONG)))"
        " USING delta"
    )
    halves = numbers(spark).select("value", (F.col("value") * 2).alias("half"))
    writer = halves.writeStream.format("delta").option("path", f"{folder}/table")
    fails(writer.option("checkpointLocation", f"{folder}/checkpoint"))


@case(
    "others.numpy_scalar", type="SERIALIZATION", origin="user", decision="stop",
    subject="numpy.dtype",
)  # fmt: skip
def numpy_scalar(spark: SparkSession, folder: Path) -> None:
    @F.udf("double", useArrow=False)
    def root(value: int) -> float:
        return np.sqrt(value)

    into_noop(numbers(spark).select(root("value")))


@case(
    "others.broadcast_file", type="SERIALIZATION", origin="user", decision="stop",
    line="broadcast(", subject="_io.TextIOWrapper",
)  # fmt: skip
def broadcast_file(spark: SparkSession, folder: Path) -> None:
    def write(batch: DataFrame, epoch: int) -> None:
        with (folder / "log.txt").open("w") as log:
            shared = batch.sparkSession.sparkContext.broadcast({"epoch": epoch, "log": log})
            batch.foreach(lambda row: print(row, shared.value["epoch"]))

    fails(numbers(spark).writeStream.foreachBatch(write))
