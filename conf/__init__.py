"""The configuration files that users edit: Spark defaults, logging, and job settings. Shipped as package data."""
