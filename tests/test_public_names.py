"""The public face of the package: its names, and that looking at it is cheap."""

import json
import subprocess
import sys
from types import ModuleType

import spark_ext as sx

MODULES = ("control", "errors", "failures", "listeners")
OBJECTS = (
    "Control", "Job", "JobResult", "async_map", "classify", "expect", "read", "register", "session", "table_path",
    "with_control", "with_watermark",
)  # fmt: skip


def test_exported_names() -> None:
    assert sorted(sx.__all__) == sorted(MODULES + OBJECTS)
    assert dir(sx) == sorted(sx.__all__)


def test_each_name_is_what_it_says_whatever_was_imported_before() -> None:
    # Importing a submodule sets it as an attribute of the package: it must not hide a public name.
    import pkgutil
    from importlib import import_module

    for module in pkgutil.iter_modules(sx.__path__, "spark_ext."):
        if module.name != "spark_ext.__main__":
            import_module(module.name)
    for name in OBJECTS:
        assert callable(getattr(sx, name)), name
    for name in MODULES:
        assert isinstance(getattr(sx, name), ModuleType), name


def test_import_costs_workers_neither_spark_nor_tables() -> None:
    code = "import json, sys, spark_ext, spark_ext.errors; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(json.loads(done.stdout))
    assert not loaded & {"pyspark", "pandas", "pyarrow", "deltalake", "pydantic", "rich", "typer"}
