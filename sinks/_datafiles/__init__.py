"""Data files in a folder or object store, as three sinks write them: rows, names, types, statistics and orphans."""
