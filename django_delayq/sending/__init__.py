"""Sending, and the moves that a site makes by id: one at a time and in bulk, sync and async, by one code path."""
