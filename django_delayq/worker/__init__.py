"""Claim, run, settle: what `manage.py run_delayq` runs."""
