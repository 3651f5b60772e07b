"""`python -m spark_ext`: the command line."""

from spark_ext.cli import console

if __name__ == "__main__":
    console()
