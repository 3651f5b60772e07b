"""Data files in a folder or object store: listing, reading checks, writing, statistics and orphans."""
