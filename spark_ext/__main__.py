"""`python -m spark_ext`: the command line."""

from spark_ext.cli import main

if __name__ == "__main__":
    main()
