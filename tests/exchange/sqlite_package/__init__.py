"""A package with a kind of exchange, as pip would install it: its module, and the entry point of its pyproject.toml."""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import tomlkit

HERE = Path(__file__).parent


@contextmanager
def installed() -> Iterator[str]:
    """For this process and those that it starts; what their PYTHONPATH then is."""
    project = tomlkit.parse((HERE / "pyproject.toml").read_text()).unwrap()["project"]
    name, points = f"{project['name']}-{project['version']}", project["entry-points"]
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        about = Path(folder, f"{name.replace('-', '_', 1)}.dist-info")
        about.mkdir()
        (about / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
        )
        lines = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in of.items()) for group, of in points.items()]
        (about / "entry_points.txt").write_text("\n".join(lines))
        places = [folder, str(HERE / "src")]
        for place in places:
            patch.syspath_prepend(place)
        patch.setenv("PYTHONPATH", os.pathsep.join([*places, *filter(None, [os.environ.get("PYTHONPATH")])]))
        try:
            yield os.environ["PYTHONPATH"]
        finally:
            sys.modules.pop("sqlite_exchange", None)
