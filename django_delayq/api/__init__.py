"""The functions that a site calls: handlers, sends, cancels and reads of messages, in bulk too, sync and async."""
