"""Executors: what runs handlers, in threads and as tasks of an event loop."""
