"""Executors, which run handlers in threads and as tasks of an event loop."""
