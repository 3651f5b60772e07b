"""Hours of one job with every kind of source and sink, watched for what grows: `python -m benchmarks.soak`."""
