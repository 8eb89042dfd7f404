"""The jobs of `manage.py delayq_spark`, a module each."""
