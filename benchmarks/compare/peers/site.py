"""Set up the site that the contenders need which are Django apps. Import this first."""

import os
import sys
from datetime import UTC, datetime

import django
from django.core.management import call_command

os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.compare.peers.settings"
django.setup()


def prepare() -> None:
    """Make the tables."""
    call_command("migrate", run_syncdb=True, verbosity=0)


def command(*words: str) -> list[str]:
    """Return the command line of a management command."""
    return [sys.executable, "-m", "django", *words]


def time_of(due_ms: float | None) -> datetime | None:
    """Return a due time as Django has it."""
    return None if due_ms is None else datetime.fromtimestamp(due_ms / 1000, UTC)
