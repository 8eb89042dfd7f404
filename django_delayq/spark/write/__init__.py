"""Writing: a message per row."""
