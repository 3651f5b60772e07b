"""The bridge between `TwoPhaseCommitSink` and Spark's Python data source API. Authors of sinks need not read it."""
