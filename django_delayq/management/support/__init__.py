"""Share code among the subcommands of `manage.py delayq`: options, ids, tables, JSON and times."""
