"""`make release`: wheel, source distribution and release notes in dist/, tried as a stranger would use them.

The wheel is installed into an environment of its own, and the first job of its long description is run in an empty
folder. Nothing is uploaded.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

from tools.absolute_links import absolute
from tools.changelog import UNRELEASED, section
from tools.project import ROOT, project

DIST = ROOT / "dist"
EXPECTED = re.compile(r"^job 'first' FINISHED: 60,000 rows in .*", re.MULTILINE)


def main() -> None:
    """Build all, and try it.

    Raises:
        SystemExit: something does not hold; what, is said.
    """
    known = project()
    version, source = known["version"], known["urls"]["Source"]
    if DIST.exists() and any(DIST.iterdir()):
        raise SystemExit("dist/ is not empty: `make clean` removes it")
    say(f"building spark-ext {version}")
    run(sys.executable, "-m", "build", "--outdir", str(DIST), str(ROOT))
    wheel, archive = one(f"spark_ext-{version}-*.whl"), one(f"spark_ext-{version}.tar.gz")
    run(sys.executable, "-m", "twine", "check", "--strict", str(wheel), str(archive))
    relative = re.findall(r"\]\((?!https://|#)[^)\s]*\)", long_description(wheel))
    if relative:
        raise SystemExit(f"links of the long description lead nowhere outside of the repository: {relative}")
    heading, text = section((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), version)
    notes = DIST / f"release-notes-{version}.md"
    notes.write_text(f"# spark-ext {version}\n\n{absolute(text, source, version)}", encoding="utf-8")
    with tempfile.TemporaryDirectory(prefix="spark-ext-release-") as folder:
        try_wheel(wheel, Path(folder), version)
    say(*(f"dist/{path.name}  {path.stat().st_size:,} bytes" for path in sorted(DIST.iterdir())))
    if heading == UNRELEASED:
        say(f"do not publish this: CHANGELOG.md has no section for {version} yet, so its notes are '{UNRELEASED}'")


def try_wheel(wheel: Path, folder: Path, version: str) -> None:
    """Install a wheel with Spark into a new environment, and run the first job of its long description.

    Args:
        wheel: of this package.
        folder: an empty one.
        version: that it should have.

    Raises:
        SystemExit: it does not install, import or run.
    """
    say("installing the wheel into an environment of its own")
    python = folder / "env" / "bin" / "python"
    venv.create(folder / "env", with_pip=True)
    run(str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", f"{wheel}[spark]")
    place = folder / "empty"
    place.mkdir()
    told = run(str(python), "-c", "import spark_ext; print(spark_ext.__version__, spark_ext.__file__)", cwd=place)
    if not told.startswith(f"{version} {folder}"):
        raise SystemExit(f"another spark-ext was imported: {told}")
    run(str(python.with_name("spark-ext")), "--help", cwd=place)
    run(str(python.with_name("spark-ext")), "init", "own-source", cwd=place)
    say("running the first job of the long description")
    told = run(str(python), "-c", first_block(long_description(wheel)), cwd=place)
    result = EXPECTED.search(told)
    if result is None or "|rows|" not in told:
        raise SystemExit(f"the first job did not end as README says:\n{told}")
    say(result[0])
    run(str(python.with_name("spark-ext")), "status", "out/first_job/state", cwd=place)


def long_description(wheel: Path) -> str:
    """What an index shows of a wheel: the body of its metadata."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return archive.read(name).decode().partition("\n\n")[2]


def first_block(text: str) -> str:
    """The first Python code of a Markdown text.

    Raises:
        ValueError: there is none.
    """
    found = re.search(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    if found is None:
        raise ValueError("no Python code in it")
    return found[1]


def one(pattern: str) -> Path:
    """The only file in dist/ that matches.

    Raises:
        SystemExit: there is none, or several.
    """
    found = list(DIST.glob(pattern))
    if len(found) != 1:
        raise SystemExit(f"dist/ should have one {pattern}, and has {[path.name for path in found]}")
    return found[0]


def run(*command: str, cwd: Path = ROOT) -> str:
    """Run a command outside of the checkout's import path.

    Returns:
        Its output.

    Raises:
        SystemExit: it failed; its output is shown.
    """
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command[:4])} ...: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def say(*lines: str) -> None:
    """Tell the person who waits."""
    print(*lines, sep="\n", flush=True)


if __name__ == "__main__":
    main()
