"""The file system by which Arrow opens a URI: the one place that knows what Arrow calls the stores.

The options come from the environment; see `StoreOptions.environment`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from spark_ext.stores.options import StoreOptions, is_s3

if TYPE_CHECKING:
    from pyarrow import fs


def filesystem_of(uri: str) -> tuple[fs.FileSystem, str]:
    """Arrow's file system of a path or URI, and the path in it.

    Args:
        uri: an absolute local path, or a URI. `s3a://`, as Hadoop writes it, is `s3://`.

    Raises:
        ValueError: Arrow has no file system for it.
        OSError: its store cannot be opened.
    """
    import pyarrow.fs

    if is_s3(uri):
        place = uri.partition("://")[2]
        options = StoreOptions.of_environment(os.environ).values
        if options.get("aws_virtual_hosted_style_request", "").lower() == "true":
            system = pyarrow.fs.S3FileSystem(
                endpoint_override=options.get("aws_endpoint_url"),
                region=options.get("aws_region"),
                force_virtual_addressing=True,
            )
            return system, place
        uri = f"s3://{place}"
    found: tuple[fs.FileSystem, str] = pyarrow.fs.FileSystem.from_uri(uri)
    return found
