"""`manage.py demo`: a week of the shop in seconds."""

import os
import sys
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand


class Command(BaseCommand):
    """Starts this process anew as the demo, because the demo has settings of its own."""

    help = "Play a week of the shop in under 30 seconds, kill a worker on the way, and count what became of it all."

    def handle(self, *args: Any, **options: Any) -> None:
        environment = os.environ | {"DJANGO_SETTINGS_MODULE": "example_project.demo.settings"}
        os.chdir(settings.BASE_DIR)
        os.execve(sys.executable, [sys.executable, "-m", "example_project.demo"], environment)  # noqa: S606
