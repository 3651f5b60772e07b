"""The sink `files_2pc`. Readers that are not Spark use `read`, `committed_files` and `committed_uris`."""

from spark_ext.sinks.files_2pc.sink import committed_files as committed_files
from spark_ext.sinks.files_2pc.sink import committed_uris as committed_uris
from spark_ext.sinks.files_2pc.sink import read as read
