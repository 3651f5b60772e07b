"""Object stores: their options in one place, and the file systems by which Arrow opens them.

The options reach everything that opens a store by itself through the environment: delta-rs, Arrow and, by their own
settings, Hadoop's file systems. So no option is part of a table, a checkpoint, an offset or a query's options.
"""

from spark_ext.stores.filesystem import filesystem_of
from spark_ext.stores.options import StoreOptions, is_s3

__all__ = ["StoreOptions", "filesystem_of", "is_s3"]
