"""The worker, which `manage.py run_delayq` runs: claim, run, settle."""
