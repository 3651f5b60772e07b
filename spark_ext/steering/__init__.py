"""`Control`: change a job, and see what has become of it, from Python: in the driver, on its host, or over HTTP."""
