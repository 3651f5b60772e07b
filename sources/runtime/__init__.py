"""The bridge between `ChannelSource` and Spark's Python data source API. Authors of sources need not read it."""
