"""Actions on many messages: what is selected, what is moved, what is said."""
