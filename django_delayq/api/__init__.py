"""Offer what a site calls, sync and async: register handlers, send, cancel, reschedule and read messages."""
