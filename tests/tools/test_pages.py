"""The generated parts of the documentation, and `conf/job.yaml`, are what the code says."""

import pytest

from spark_ext.settings import JobSettings
from tools import pages

FILES = pages.files()


@pytest.mark.parametrize("path", FILES)
def test_a_generated_file_is_up_to_date(path: str) -> None:
    assert (pages.ROOT / path).read_text(encoding="utf-8") == FILES[path], "run: python -m tools.pages"


def test_every_setting_has_a_text() -> None:
    assert list(pages.about_settings()) == list(JobSettings.model_fields)
