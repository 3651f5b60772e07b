"""A home for a local Spark whose Python workers start several times faster.

Spark puts `python/lib/pyspark.zip` first on the path of every Python worker, and Python cannot keep compiled code for
a zip: each planner, committer and worker daemon compiles pyspark anew, about a second of processor time each. A local
session's workers run under this very interpreter, which has the same pyspark installed and compiled. So the session
gets a folder with links to all of Spark's home except that zip.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

CACHE = "spark-ext"


def home_without_zip() -> str | None:
    """The folder, made on first use in the user's cache; None when Spark's home is not pyspark's own package.

    A home that the user has chosen (SPARK_HOME) is left alone, and so is a cache that cannot be written.
    """
    if os.environ.get("SPARK_HOME"):
        return None
    import pyspark

    package = Path(pyspark.__file__).parent
    if not (package / "python" / "lib" / "pyspark.zip").exists() or not (package / "bin" / "spark-submit").exists():
        return None
    key = hashlib.sha256(f"{package} {pyspark.__version__}".encode()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / CACHE
    home = cache / f"spark-home-{pyspark.__version__}-{key}"
    if not home.is_dir():
        try:
            _make(package, home)
        except OSError:
            return None
    return str(home)


def _make(package: Path, home: Path) -> None:
    """Make the folder whole and only then give it its name, so that a crash or a race leaves no half of it."""
    home.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{home.name}-", dir=home.parent))
    for name in ("bin", "sbin", "jars", "licenses"):
        if (package / name).exists():
            (draft / name).symlink_to(package / name)
    try:
        draft.rename(home)
    except OSError:
        if not home.is_dir():
            raise
        for link in draft.iterdir():
            link.unlink()
        draft.rmdir()
