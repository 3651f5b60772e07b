"""A job as plots: `data.py` says what is drawn, `figure.py` draws it with matplotlib, `terminal.py` with characters."""
