"""No password or token is in anything that jobs write, say or raise, with servers that repeat what they receive."""

import json
import logging
import traceback
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

import spark_ext as sx
from spark_ext.errors import SparkExtError
from tests.servers.postgres import Database
from tests.servers.receiver import Receiver

PASSWORD, ENCODED = "p@ss/w0rd%41", "p%40ss%2Fw0rd%2541"
TOKEN, HEADER, QUERY = "tok-in-headers-1", "x-secret-value-2", "key-in-address-3"
EVERY = (PASSWORD, ENCODED, TOKEN, HEADER, QUERY, "ss/w0rd", "not-the-p4ssword")


@pytest.fixture
def address(database: Database) -> str:
    """Of a role whose password has to be encoded in an address."""
    with database.server.admin(database.name) as admin:
        admin.execute(
            f"DROP ROLE IF EXISTS keeper; CREATE ROLE keeper LOGIN PASSWORD '{PASSWORD}'; "
            f"GRANT ALL ON DATABASE {database.name} TO keeper; GRANT ALL ON SCHEMA public TO keeper"
        )
    database.run(
        "CREATE TABLE orders (id int PRIMARY KEY, name text)", "INSERT INTO orders VALUES (1, 'a'), (2, 'b')",
        "GRANT ALL ON orders TO keeper",
    )  # fmt: skip
    return f"postgresql://keeper:{ENCODED}@127.0.0.1:{database.server.port}/{database.name}"


def test_no_secret_is_in_anything_that_jobs_leave(
    spark: SparkSession, address: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Jobs that go well, and jobs that servers refuse in their own words: state, outbox, ledger, logs and errors."""
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.INFO, logger="py4j")  # it tells all that it sends to Spark, when it is asked to
    said: list[str] = []

    def run(name: str, sink: str, **options: str) -> None:
        rows = spark.readStream.format("postgres").options(uid="in", dsn=address, table="orders").load()
        job = sx.Job(spark, name, state=tmp_path / name, restart_attempts=1, restart_backoff="10 ms", outage_patience=0)
        job.add("q", rows.writeStream.format(sink).options(uid="out", **options))
        try:
            result = job.run(progress=False)
            said.append(f"{result} {result!r}")
        except SparkExtError as failure:
            said.append(f"{failure!r} {traceback.format_exc()}")
            said.append("failed")

    headers = json.dumps({"Authorization": f"Bearer {TOKEN}", "X-Other": HEADER})
    with Receiver(tmp_path / "receiver") as receiver:
        to_http = {"url": f"{receiver.url}?api_key={QUERY}", "headers": headers, "outbox": str(tmp_path / "outbox")}
        run("well", "postgres_2pc", dsn=address, table="copy")
        run("sent", "http_2pc", **to_http)
        assert "failed" not in said and len(receiver.rows()) == 2
        receiver.behave({"status": 401, "text": f"{TOKEN}, {HEADER} and {QUERY} are not known", "always": True})
        run("refused", "http_2pc", **{**to_http, "outbox": str(tmp_path / "outbox-2")})
    run("closed", "http_2pc", **{**to_http, "outbox": str(tmp_path / "outbox-3"), "commit_attempts": "1"})
    run("wrong", "postgres_2pc", dsn=address.replace(ENCODED, "not-the-p4ssword"), table="copy-2")
    run("torn", "postgres_2pc", dsn=address.replace(ENCODED, PASSWORD.rstrip("%41")), table="copy-3")
    assert said.count("failed") == 4
    said += [record.getMessage() for record in caplog.records]
    for text in (*said, *_left_in(tmp_path)):
        assert not [secret for secret in EVERY if secret in text], text[:2000]


def _left_in(folder: Path) -> list[str]:
    """All files but the receiver's own, and the rows of all Delta tables, which are compressed."""
    files = [path for path in folder.rglob("*") if path.is_file() and "receiver" not in path.parts]
    tables = [path.parent for path in folder.rglob("_delta_log")]
    assert len(files) > 50 and len(tables) > 5
    return [path.read_bytes().decode(errors="replace") for path in files] + [
        str(DeltaTable(str(table)).to_pyarrow_table().to_pylist()) for table in tables
    ]
