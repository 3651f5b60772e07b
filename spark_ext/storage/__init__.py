"""The one room for files: folders on file systems and in object stores, and everything that replaces, links or syncs.

Outside of it no module calls `os.replace`, `os.link`, `os.fsync` or what does the same. Planners and tasks import it:
it loads pyarrow on first use only, and delta-rs only for stores without the interface of S3.

The options of object stores reach everything that opens a store by itself through the environment: delta-rs, Arrow and,
by their own settings, Hadoop's file systems. So no option is part of a table, a checkpoint, an offset or a query's
options.
"""

from spark_ext.storage.copies import checksum, link
from spark_ext.storage.filesystem import filesystem_of
from spark_ext.storage.folder import Folder, writer_of
from spark_ext.storage.local import LocalFolder, move
from spark_ext.storage.location import Location, check_for_delta, child, folder_at, local_path
from spark_ext.storage.options import StoreOptions, is_s3
from spark_ext.storage.store import StoreFolder, require_conditional_writes

__all__ = [
    "Folder",
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
    "writer_of",
]
