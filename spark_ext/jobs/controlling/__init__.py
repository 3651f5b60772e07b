"""Control events of a running job, and the restarts and rebuilds that they ask for."""
