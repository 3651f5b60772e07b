"""The source `files`: channels are files, read as parquet, csv or JSON."""
