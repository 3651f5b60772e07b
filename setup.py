"""The package's long description: README.md with links that work on an index's page. The rest is in pyproject.toml."""

import sys
from pathlib import Path

from setuptools import setup

sys.path.insert(0, str(Path(__file__).parent))  # a build backend does not put it there

from tools.absolute_links import absolute
from tools.project import ROOT, project

known = project()
readme = (ROOT / "README.md").read_text(encoding="utf-8")
setup(
    long_description=absolute(readme, known["urls"]["Source"], known["version"]),
    long_description_content_type="text/markdown",
)
