"""A JVM of a session that runs out of its heap leaves it in the folder that was asked for."""

from pathlib import Path

import pytest
from py4j.protocol import Py4JError

import spark_ext as sx
from spark_ext.errors import ConfigurationError
from spark_ext.testing.children import Child

SMALL = {"spark.ui.enabled": "false", "spark.driver.memory": "480m", "spark.executor.extraJavaOptions": "-Dmine=1"}


def exhaust(folder: Path) -> None:
    """Start a session, and run its JVM out of memory."""
    spark = sx.session("small", master="local[1]", conf=SMALL, heap_dumps=folder)
    options = spark.sparkContext.getConf().get("spark.executor.extraJavaOptions")
    assert options is not None, "Spark adds its own before them"
    assert f"-XX:+HeapDumpOnOutOfMemoryError -XX:HeapDumpPath={folder} -Dmine=1" in options
    gateway = spark.sparkContext._gateway
    assert gateway is not None and not list(folder.iterdir())
    with pytest.raises(Py4JError):  # its connection breaks
        gateway.new_array(gateway.jvm.long, 100_000_000)


@pytest.mark.slow(15, "starts a JVM")
def test_a_jvm_that_runs_out_of_its_heap_writes_it(tmp_path: Path) -> None:
    with Child(exhaust, tmp_path / "heaps") as child:
        said = child.wait()
        assert child.poll() == 0, said
    (heap,) = (tmp_path / "heaps").iterdir()
    assert heap.suffix == ".hprof"
    with heap.open("rb") as content:
        assert content.read(12) == b"JAVA PROFILE"


@pytest.mark.parametrize("name", ["two words", 'a"b', "a$b", "a;b"])
def test_a_path_that_a_jvm_would_not_get_as_it_is_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot have"):
        sx.session("never", heap_dumps=tmp_path / name)
    assert not (tmp_path / name).exists()


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="cannot be made"):
        sx.session("never", heap_dumps=tmp_path / "file" / "heaps")
