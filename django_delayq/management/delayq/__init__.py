"""The subcommands of `manage.py delayq`, a module each, and the helpers that they share."""
