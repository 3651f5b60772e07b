"""How `files_2pc` writes each format into a folder."""
