"""The flights example with everything in an object store: `--out s3://BUCKET/FOLDER`. Run it again until it ends.

The store is the one that the environment names (AWS_...). The prepared files are copied there at the first start.
"""

import argparse
import os
import sys
from pathlib import Path

import pyarrow as pa

import spark_ext as sx
from examples import flights
from spark_ext.storage import StoreOptions, filesystem_of
from tests.chaos.commands import ended


def expected() -> dict[str, pa.Table]:
    outcome = flights.Outcome.by_pandas()
    day = pa.table({"day": pa.array(outcome.daily["day"], pa.date32())})
    daily = pa.Table.from_pandas(outcome.daily.drop(columns="day"), preserve_index=False)
    tables = {
        "daily": daily.add_column(0, day.schema.field(0), day.column(0)),
        "hourly": pa.Table.from_pandas(outcome.hourly, preserve_index=False),
        "with_weather": pa.Table.from_pandas(outcome.with_weather, preserve_index=False),
    }
    return {name: in_microseconds(table) for name, table in tables.items()}


def in_microseconds(table: pa.Table) -> pa.Table:
    types = [pa.timestamp("us", "UTC") if pa.types.is_timestamp(field.type) else field.type for field in table.schema]
    return table.cast(pa.schema([pa.field(name, kind) for name, kind in zip(table.column_names, types, strict=True)]))


def put_input(data: Path, out: str) -> None:
    system, place = filesystem_of(f"{out}/data")
    for file in sorted(data.rglob("*.parquet")):
        target = f"{place}/{file.relative_to(data)}"
        if system.get_file_info(target).size != file.stat().st_size:
            with system.open_output_stream(target) as stream:
                stream.write(file.read_bytes())


class _At(str):
    """A folder in the store, joined as a path is."""

    def __truediv__(self, name: str) -> "_At":
        return _At(f"{self}/{name}")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--data", type=Path, required=True)
    given = parser.parse_args()
    flights.prepare(given.data)
    put_input(given.data, given.out)
    options = dict(StoreOptions.of_environment(os.environ).values)
    spark = sx.session("flights", conf={"spark.driver.memory": "1g"}, storage_options=options)
    job = sx.Job(spark, "flights", state=f"{given.out}/state", restart_attempts=20, restart_backoff=20)
    for query in (flights.daily, flights.hourly, flights.with_weather):
        uid = query.__name__
        frame = query(spark, _At(f"{given.out}/data"))  # type: ignore[arg-type]
        job.add(uid, frame.writeStream.format("delta_2pc").options(uid=f"{uid}-table", path=f"{given.out}/{uid}"))
    return ended(job.run(progress=False))


if __name__ == "__main__":
    sys.exit(main())
