"""The dashboard of an alias, and the actions that it offers."""
