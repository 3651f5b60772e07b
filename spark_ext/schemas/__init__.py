"""Schemas and types: DDL, columns, and how Spark's types map to Arrow's and Parquet's."""
