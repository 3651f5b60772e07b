"""The sink `files_2pc`: files in a folder, and the log that says which of them are committed."""
