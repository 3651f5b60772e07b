"""What makes a release of spark-ext and tries it: not part of the package."""
