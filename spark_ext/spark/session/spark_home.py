"""A Spark home for local sessions in which Python workers start several times faster.

Each worker finds `python/lib/pyspark.zip` first on its path, and Python compiles the modules of a zip each time, about
a second of CPU time. This directory has links to all of Spark's home but that zip: the workers of a local session run
the same interpreter, whose pyspark is compiled.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

from spark_ext.storage import move


def user_cache() -> Path:
    """The folder of what is made or looked up once for a user of this machine, whether or not it is there."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "spark-ext"


def home_without_zip() -> str | None:
    """The directory, created on first use in the user's cache; None if Spark's home is not pyspark's own package.

    Also None if the user has chosen a home (SPARK_HOME), or if the cache cannot be written.
    """
    if os.environ.get("SPARK_HOME"):
        return None
    import pyspark

    package = Path(pyspark.__file__).parent
    if not (package / "python" / "lib" / "pyspark.zip").exists() or not (package / "bin" / "spark-submit").exists():
        return None
    key = hashlib.sha256(f"{package} {pyspark.__version__}".encode()).hexdigest()[:16]
    home = user_cache() / f"spark-home-{pyspark.__version__}-{key}"
    if not home.is_dir():
        try:
            _make(package, home)
        except OSError:
            return None
    return str(home)


def _make(package: Path, home: Path) -> None:
    """Create the directory under a temporary name, then rename it: a crash or a race leaves no partial one."""
    home.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{home.name}-", dir=home.parent))
    for name in ("bin", "sbin", "jars", "licenses"):
        if (package / name).exists():
            (draft / name).symlink_to(package / name)
    try:
        move(draft, home)
    except OSError:
        if not home.is_dir():
            raise
        for link in draft.iterdir():
            link.unlink()
        draft.rmdir()
