"""The file system by which Arrow opens a URI: the one place that knows what Arrow calls the stores.

The options come from the environment (see `StoreOptions.environment`), unless there are some of the caller's own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from spark_ext.storage.options import StoreOptions, is_s3

if TYPE_CHECKING:
    from pyarrow import fs

_ATTEMPTS: Final = 6
"""Attempts of a request that the store has not answered, or has put off. What waits longer is repeated as a whole."""


def filesystem_of(uri: str, options: Mapping[str, str] | None = None) -> tuple[fs.FileSystem, str]:
    """Arrow's file system of a path or URI, and the path in it.

    Args:
        uri: an absolute local path, or a URI. `s3a://`, as Hadoop writes it, is `s3://`.
    """
    import pyarrow.fs

    if is_s3(uri):
        place = uri.partition("://")[2]
        given = StoreOptions({name.lower(): value for name, value in (options or {}).items()})
        values = given.over(StoreOptions.of_environment(os.environ)).values
        if "aws_endpoint_url" in values or "aws_region" in values:
            return pyarrow.fs.S3FileSystem(**_arguments(values)), place
        # Arrow finds out in which region the bucket is.
        uri = f"s3://{place}"
    found: tuple[fs.FileSystem, str] = pyarrow.fs.FileSystem.from_uri(uri)
    return found


def _arguments(values: Mapping[str, str]) -> dict[str, Any]:
    import pyarrow.fs

    return {
        "access_key": values.get("aws_access_key_id"),
        "secret_key": values.get("aws_secret_access_key"),
        "session_token": values.get("aws_session_token"),
        "anonymous": values.get("aws_skip_signature", "").lower() == "true",
        "endpoint_override": values.get("aws_endpoint_url"),
        "region": values.get("aws_region") or "us-east-1",
        "force_virtual_addressing": values.get("aws_virtual_hosted_style_request", "").lower() == "true",
        # A small file is one request: a process that is killed leaves no upload in parts.
        "allow_delayed_open": True,
        "retry_strategy": pyarrow.fs.AwsStandardS3RetryStrategy(max_attempts=_ATTEMPTS),
    }
