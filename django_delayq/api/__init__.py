"""What a site calls: handlers, and sends, cancels and reads of messages, one by one and in bulk, sync and async."""
