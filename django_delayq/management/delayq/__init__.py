"""The subcommands of `manage.py delayq`, a module each, and what they share."""
