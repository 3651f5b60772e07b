"""The driver's half of the door to Spark: all that it uses of pyspark's internals and, by py4j, of the JVM."""
