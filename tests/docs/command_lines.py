"""Command lines that a page shows for others to run: systemd, a container."""

import shlex
from collections.abc import Iterator
from typing import Any

from django.core.management import load_command_class
from django.core.management.base import CommandError

OURS = ("run_delayq", "delayq")


def command_lines(manifest: Any) -> Iterator[str]:
    """Each list of words in a Kubernetes manifest, as one line."""
    if isinstance(manifest, dict):
        for value in manifest.values():
            yield from command_lines(value)
    elif isinstance(manifest, list) and all(isinstance(word, str) for word in manifest):
        yield shlex.join(manifest)
    elif isinstance(manifest, list):
        for value in manifest:
            yield from command_lines(value)


def refused(command: str) -> str | None:
    """Why manage.py would not take what `command` gives it; None when it does, or when it is not for ours."""
    _, _, arguments = command.partition("manage.py ")
    name, *options = shlex.split(arguments) or [""]
    if name not in OURS:
        return None
    try:
        parser = load_command_class("django_delayq", name).create_parser("manage.py", name)
        parser.called_from_command_line = False  # raise, don't exit
        parser.parse_args(options)
    except CommandError as error:
        return f"{command}: {error}"
    return None
