"""`files` and symbolic links: a file is read once, whatever leads to it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import fs

from spark_ext.datafiles.listing import Listing
from spark_ext.datafiles.local_tree import once, walk
from spark_ext.errors import ConfigurationError
from tests.sources.files.files_kit import read_all, source


def files(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{name}\n")


def found(path: Path, **more: str) -> list[str]:
    return [channel.id for channel in source(path, "w string", **more).discover()]


@pytest.mark.parametrize("target", [".", "..", "../in", "a", "a/../.."])
def test_a_link_to_a_folder_of_the_tree_or_above_it_repeats_nothing(tmp_path: Path, target: str) -> None:
    root = tmp_path / "in"
    files(root, "a/x.csv", "y.csv")
    (root / "loop").symlink_to(target)
    (root / "a/loop").symlink_to(root)
    assert found(root) == ["a/x.csv", "y.csv"]
    assert [row["w"] for row in read_all(source(root, "w string"))] == ["a/x.csv", "y.csv"]


def test_a_file_reached_by_its_path_and_by_links_has_its_path_as_its_name(tmp_path: Path) -> None:
    files(tmp_path, "a/x.csv", "z.csv")
    (tmp_path / "0.csv").symlink_to("a/x.csv")
    (tmp_path / "b").symlink_to("a")
    (tmp_path / "c.csv").symlink_to(tmp_path / "0.csv")
    assert found(tmp_path) == ["a/x.csv", "z.csv"]
    assert found(tmp_path, group="directory") == ["a", "."]
    # By a path that only the links match, they are the only names.
    assert found(tmp_path / "b*") == ["b/x.csv"]
    assert found(tmp_path, pattern="z*") == ["z.csv"]
    assert found(tmp_path, recursive="false", pattern="[!c]*") == ["0.csv", "z.csv"]


def test_links_to_what_is_elsewhere_or_hidden_are_followed(tmp_path: Path) -> None:
    files(tmp_path, "out/d/x.csv", "out/y.csv", "in/..data/z.csv")
    (tmp_path / "in/d").symlink_to(tmp_path / "out/d")
    (tmp_path / "in/y.csv").symlink_to(tmp_path / "out/y.csv")
    (tmp_path / "in/z.csv").symlink_to("..data/z.csv")
    (tmp_path / "in/gone.csv").symlink_to("nowhere")
    (tmp_path / "link").symlink_to("in")
    assert found(tmp_path / "in") == found(tmp_path / "link") == ["d/x.csv", "y.csv", "z.csv"]


@pytest.mark.parametrize(
    "links", [{"1.csv": "out/d/x.csv", "2.csv": "out/d/x.csv"}, {"1": "out/d", "2": "out"}, {"1": "out", "2": "out/d"}]
)
def test_two_links_to_a_file_elsewhere_are_refused_by_name(tmp_path: Path, links: dict[str, str]) -> None:
    files(tmp_path, "out/d/x.csv")
    (tmp_path / "in").mkdir()
    for name, target in links.items():
        (tmp_path / "in" / name).symlink_to(tmp_path / target)
    with pytest.raises(ConfigurationError, match=r"'1.* and '2.* are symbolic links to the same file '.*out/d/x\.csv'"):
        found(tmp_path / "in")
    assert len(found(tmp_path / "in/1*")) == 1


names = st.sampled_from(["a", "b", "a/c", "b/d", "_h", ""])


@given(there=st.sets(names, min_size=1), links=st.lists(st.tuples(names, st.sampled_from("lmn"), names), max_size=4))
@settings(max_examples=60, deadline=None)
def test_each_file_has_one_name_whatever_the_links(
    tmp_path_factory: pytest.TempPathFactory, there: set[str], links: list[tuple[str, str, str]]
) -> None:
    """Files that have their own path in the tree are exactly those, once; without links as Arrow lists."""
    root = tmp_path_factory.mktemp("in") / "root"
    files(root, *(f"{folder}/x.csv".lstrip("/") for folder in there))
    plain = Listing(fs.LocalFileSystem(), str(root), "t").entries()
    arrow = fs.LocalFileSystem().get_file_info(fs.FileSelector(str(root), recursive=True))
    listed = [(info.path[len(str(root)) + 1 :], info.size, info.mtime_ns) for info in arrow if info.is_file]
    assert sorted((one.name, one.size, one.modified) for one in plain) == [
        one for one in sorted(listed) if not one[0].startswith("_h")
    ]
    for folder, name, target in links:
        (root / folder).mkdir(parents=True, exist_ok=True)
        if not os.path.lexists(root / folder / name):
            (root / folder / name).symlink_to(root / target)
    seen = [one for one in walk(str(root), deep=True) if not one.linked]
    assert {one.entry.name for one in seen} == {one.name for one in plain}
    chosen = once([one for one in walk(str(root), deep=True) if "_h" not in one.real])
    assert sorted(one.name for one in chosen) == sorted(one.name for one in plain)
