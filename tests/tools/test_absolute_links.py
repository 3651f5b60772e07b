"""Links that work on an index's page."""

import re

import pytest

from tools.absolute_links import absolute
from tools.project import ROOT, project

SOURCE = "https://host/project"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[a](docs/a.md)", "[a](https://host/project/blob/v1.0/docs/a.md)"),
        ("[a](docs/a.md#part)", "[a](https://host/project/blob/v1.0/docs/a.md#part)"),
        (
            "[`a`](docs/a.md) [b](LICENSE)",
            "[`a`](https://host/project/blob/v1.0/docs/a.md) [b](https://host/project/blob/v1.0/LICENSE)",
        ),
        ("![p](docs/p.png)", "![p](https://host/project/raw/v1.0/docs/p.png)"),
        ("[p](docs/p.png)", "[p](https://host/project/raw/v1.0/docs/p.png)"),
        ("[![p](p.png)](a.md)", "[![p](https://host/project/raw/v1.0/p.png)](https://host/project/blob/v1.0/a.md)"),
        ("[a](https://other/a) [b](#part) [c](mailto:x@y)", "[a](https://other/a) [b](#part) [c](mailto:x@y)"),
        ("```python\nx[0](a)\n```\n", "```python\nx[0](a)\n```\n"),
        ("call `x[0](a)`, [b](c.md)", "call `x[0](a)`, [b](https://host/project/blob/v1.0/c.md)"),
    ],
)
def test_what_becomes_of_a_link(text: str, expected: str) -> None:
    assert absolute(text, SOURCE + "/", "1.0") == expected
    assert absolute(expected, SOURCE, "1.0") == expected


def test_links_of_a_page_in_a_folder() -> None:
    assert absolute("[a](../a.md) [b](b.md)", SOURCE, "1.0", "docs") == (
        "[a](https://host/project/blob/v1.0/a.md) [b](https://host/project/blob/v1.0/docs/b.md)"
    )


def test_every_link_of_the_readme_becomes_that_of_a_file() -> None:
    source = project()["urls"]["Source"]
    page = absolute((ROOT / "README.md").read_text(encoding="utf-8"), source, "1.0")
    targets = re.findall(r"\]\(([^)\s]+)\)", page)
    assert len(targets) > 30
    for target in targets:
        assert target.startswith("https://"), target
        if target.startswith(source):
            path = target.removeprefix(source).split("/", 3)[3].partition("#")[0]
            assert (ROOT / path).exists(), path
