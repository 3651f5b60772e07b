"""Scripts that are loaded into the test process, as `spark-ext run` loads them."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def scripts_undone() -> Iterator[None]:
    """Forget the scripts that a block has loaded, and put the search path back.

    Modules of packages stay: other modules hold their classes, and would not know those of a second import.
    """
    path, modules = list(sys.path), set(sys.modules)
    try:
        yield
    finally:
        sys.path[:] = path
        for name in sys.modules.keys() - modules:
            if _is_script(name):
                del sys.modules[name]


def _is_script(name: str) -> bool:
    file = getattr(sys.modules[name], "__file__", None)
    if file is None or name.partition(".")[0] in ("spark_ext", "tests"):
        return False
    return "site-packages" not in file and not file.startswith((sys.base_prefix, sys.prefix))
