"""Sources: `contract` is the one contract, each other module is one source on it."""
