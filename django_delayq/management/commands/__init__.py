"""The management commands, each by the name of its module."""
