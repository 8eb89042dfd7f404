"""The jobs on the command line: `manage.py delayq_spark`, a module each."""
