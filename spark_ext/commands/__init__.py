"""The commands that change a running job, and those that serve it; `spark_ext.cli` has the others."""
