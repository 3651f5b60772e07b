"""The source `hybrid`: stages one after another, switching at a cutover."""
