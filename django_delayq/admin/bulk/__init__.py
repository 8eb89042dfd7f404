"""Actions on many messages: which are selected, the confirmation page, the moves, and the background jobs."""
