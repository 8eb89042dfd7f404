"""Actions on many messages: the selection, the confirmation, the moves, and the jobs that go on with them."""
