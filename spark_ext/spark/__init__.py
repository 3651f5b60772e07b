"""Where Spark is touched: sessions and their environment, the JVM, Spark's own logs and checkpoint directories."""
