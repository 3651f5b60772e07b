"""A stall in a session whose Python workers leave no notes: their stacks are read from outside, where that may be."""

import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest

from spark_ext.spark.watching.local_workers import NOT_INSTALLED, PySpy
from tests.observing import foreign_session


@pytest.mark.process
@pytest.mark.slow(40, "a session of its own, in which a query stalls three times")
def test_a_stall_in_a_foreign_session_has_the_line_that_is_held(tmp_path: Path) -> None:
    if PySpy.here().refused:
        pytest.skip(PySpy.here().refused)
    command = [sys.executable, foreign_session.__file__, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = {line["case"]: line for line in map(json.loads, done.stdout.splitlines())}

    # Without it: as far as the JVM knows, and why no more is known.
    assert found["without"]["labels"]["type"] == "SYSTEM"
    assert f"waits for a Python worker without a stack: {NOT_INSTALLED}" in found["without"]["what"]

    for case, function in (("lock", foreign_session.held_by_a_lock), ("c", foreign_session.held_in_c)):
        one = found[case]
        line = inspect.getsourcelines(function)[1] + 1
        assert (one["labels"]["type"], one["labels"]["origin"]) == ("USER_CODE", "user"), one
        assert (one["labels"]["function"], one["labels"]["line"]) == (function.__name__, str(line)), one
        assert "Python worker, process " in one["what"]
