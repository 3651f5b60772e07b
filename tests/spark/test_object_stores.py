"""What a session knows of the storage options, and what is refused before a job starts."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import spark_ext as sx
from spark_ext.errors import ConfigurationError, EnvironmentProblem
from spark_ext.spark.session import object_stores
from spark_ext.spark.session.jars import _note
from spark_ext.storage import StoreOptions

OPTIONS = {
    "aws_access_key_id": "AKIA-of-a-test",
    "aws_secret_access_key": "hunter2-hunter2",
    "aws_endpoint_url": "http://127.0.0.1:9",
    "aws_allow_http": "true",
}


@pytest.fixture
def session(spark: SparkSession) -> Iterator[SparkSession]:
    """The environments of this process and of the workers are put back."""
    mine, workers = dict(os.environ), dict(spark.sparkContext.environment)
    yield spark
    os.environ.clear()
    os.environ.update(mine)
    spark.sparkContext.environment.clear()
    spark.sparkContext.environment.update(workers)


def test_workers_have_the_options_and_no_setting_shows_them(session: SparkSession, tmp_path: Path) -> None:
    sx.Job(session, "j", state=tmp_path, storage_options=OPTIONS)
    found = session.range(1).rdd.map(lambda _: __import__("os").environ["AWS_SECRET_ACCESS_KEY"]).collect()
    assert found == [os.environ["AWS_SECRET_ACCESS_KEY"]] == ["hunter2-hunter2"]
    shown = [*session.sparkContext.getConf().getAll(), *session.conf.getAll.items()]
    assert not [key for key, value in shown if "hunter2" in value or "AKIA" in value]
    assert session.sparkContext._jsc.hadoopConfiguration().get("fs.s3a.endpoint") == "http://127.0.0.1:9"


def test_other_options_in_the_same_session_are_refused(session: SparkSession, tmp_path: Path) -> None:
    sx.Job(session, "j", state=tmp_path / "a", storage_options=OPTIONS)
    sx.Job(session, "k", state=tmp_path / "b", storage_options=OPTIONS)
    with pytest.raises(ConfigurationError, match="'aws_secret_access_key' has another value in this session") as no:
        sx.Job(session, "l", state=tmp_path / "c", storage_options={**OPTIONS, "aws_secret_access_key": "swordfish"})
    assert "swordfish" not in str(no.value)
    assert os.environ["AWS_SECRET_ACCESS_KEY"] == "hunter2-hunter2"


@pytest.mark.parametrize("state", ["s3://bucket/state", "s3a://bucket/state", "abfss://a@b/state"])
def test_a_state_directory_spark_cannot_open_is_refused_early(session: SparkSession, state: str) -> None:
    with pytest.raises(EnvironmentProblem, match=f"no file system for {state.partition(':')[0]}://") as no:
        sx.Job(session, "j", state=state)
    assert "before the JVM starts" in no.value.do


def test_a_users_setting_of_hadoop_stays(session: SparkSession) -> None:
    hadoop = session.sparkContext._jsc.hadoopConfiguration()
    hadoop.set("fs.s3a.endpoint", "https://mine")
    session.conf.set("spark.hadoop.fs.s3a.endpoint", "https://mine")
    try:
        object_stores.use(session, StoreOptions(OPTIONS), "test")
        assert hadoop.get("fs.s3a.endpoint") == "https://mine"
    finally:
        session.conf.unset("spark.hadoop.fs.s3a.endpoint")


def test_bad_storage_is_refused_before_anything_starts() -> None:
    with pytest.raises(ConfigurationError, match="unknown storage 'minio'"):
        sx.session("x", storage="minio")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="'aws_allow_http' is not set"):
        sx.session("x", storage_options={"aws_endpoint_url": "http://127.0.0.1:9"})


def test_the_record_of_many_packages_has_a_name_fit_for_files(tmp_path: Path) -> None:
    coordinates = object_stores.s3_coordinates()
    assert coordinates.startswith("org.apache.hadoop:hadoop-aws:3.")
    names = {_note(text, tmp_path, {}).name for text in (coordinates, f"{coordinates},a:b:1")}
    assert len(names) == 2
    assert all(len(name) < 200 for name in names)
