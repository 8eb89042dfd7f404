"""`manage.py demo`: a week of the shop in seconds."""

import os
import subprocess
import sys
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand


class Command(BaseCommand):
    """Plays the demo in a process of its own, because its settings are its own (`example_project.demo.settings`)."""

    help = "Play a week of the shop in under 30 seconds, kill a worker on the way, and count what became of it all."

    def handle(self, *args: Any, **options: Any) -> None:
        command = [sys.executable, "-m", "example_project.demo"]
        environment = os.environ | {"DJANGO_SETTINGS_MODULE": "example_project.demo.settings"}
        sys.exit(subprocess.call(command, cwd=settings.BASE_DIR, env=environment))  # noqa: S603
