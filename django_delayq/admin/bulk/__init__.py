"""Actions on many messages: the selection, the confirmation page, the moves, and the background jobs."""
