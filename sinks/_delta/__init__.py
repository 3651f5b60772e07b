"""How `delta_2pc` writes Parquet and Delta's log."""
