"""The dashboard of an alias, and what is done from it."""
