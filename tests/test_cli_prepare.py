"""`spark-ext prepare` in an empty cache, and a session that then takes its classes from the archive."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import cheap_jvm

SESSION = """
import sys
import spark_ext as sx
conf = {"spark.driver.extraJavaOptions": "-Xlog:class+load:file=" + sys.argv[1]}
sx.session("prepared", master="local[1]", conf=conf, short_lived=True)
"""


@pytest.mark.process
def test_sessions_take_their_classes_from_the_archive(tmp_path: Path) -> None:
    environment = {**cheap_jvm.environment(), "XDG_CACHE_HOME": str(tmp_path)}

    def run(*command: str) -> str:
        done = subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "class archive: created" in run("-m", "spark_ext", "prepare")
    assert len(list(tmp_path.glob("spark-ext/*.jsa"))) == 1
    assert "class archive: exists" in run("-m", "spark_ext", "prepare")
    classes = tmp_path / "classes.log"
    run("-c", SESSION, str(classes))
    loaded = classes.read_text().splitlines()
    assert len([line for line in loaded if "shared objects file (top)" in line]) > len(loaded) / 2
