"""The one room for files: folders on file systems and in object stores, and everything that replaces, links or syncs.

Planners and tasks import it: it loads pyarrow on first use only, and delta-rs only for stores without the interface of
S3. The options of object stores reach delta-rs, Arrow and Hadoop through the environment, so none is part of a table, a
checkpoint, an offset or a query's options.
"""

from spark_ext.storage.folder import Folder, writer_of
from spark_ext.storage.local import GrowingFile, LocalFolder, move
from spark_ext.storage.location import (
    Location,
    check_for_delta,
    checksum,
    child,
    folder_at,
    link,
    local_path,
    sync_systems,
)
from spark_ext.storage.options import StoreOptions, is_s3
from spark_ext.storage.store import StoreFolder, filesystem_of, require_conditional_writes

__all__ = [
    "Folder",
    "GrowingFile",
    "LocalFolder",
    "Location",
    "StoreFolder",
    "StoreOptions",
    "check_for_delta",
    "checksum",
    "child",
    "filesystem_of",
    "folder_at",
    "is_s3",
    "link",
    "local_path",
    "move",
    "require_conditional_writes",
    "sync_systems",
    "writer_of",
]
