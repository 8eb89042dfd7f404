"""What the start of a process imports: a site pays for it in time and memory, also where nothing of it is used."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parent.parent
_ADMIN_PAGES = (
    "django_delayq.admin.dashboard.page",
    "django_delayq.admin.lists.failure_groups",
    "django_delayq.monitor",
)
_EXTRAS = ("amqp", "opentelemetry", "sentry_sdk")

_SETUP = "import django; django.setup()"
_CHECK = f"{_SETUP}; from django.core.management import call_command; call_command('check')"


@pytest.mark.parametrize(
    ("start", "unneeded"),
    [
        pytest.param(
            _SETUP,
            (*_ADMIN_PAGES, "django_delayq.store", "django_delayq.worker", *_EXTRAS, "redis"),
            id="setup",
        ),
        pytest.param(_CHECK, (*_ADMIN_PAGES, "django_delayq.worker", "amqp"), id="check"),  # it looks at the broker
    ],
)
def test_a_start_imports_nothing_that_only_a_page_or_a_worker_needs(start: str, unneeded: tuple[str, ...]) -> None:
    process = subprocess.run(
        [sys.executable, "-c", f"{start}; import sys; print(*sys.modules)"],
        cwd=_ROOT,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "example_project.settings"},
        check=True,
        capture_output=True,
        text=True,
    )
    imported = process.stdout.split()
    assert "django_delayq.admin.lists.admins" in imported
    found = [name for name in imported if any(name == each or name.startswith(f"{each}.") for each in unneeded)]
    assert not found, "Import it in the function that needs it: each process of a site would load it at its start."
