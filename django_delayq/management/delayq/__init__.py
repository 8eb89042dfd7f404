"""The subcommands of `manage.py delayq`: each file is one, and is listed in commands/delayq.py."""
