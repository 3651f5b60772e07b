"""Everything that watches a running job."""
