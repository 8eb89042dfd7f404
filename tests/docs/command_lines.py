"""Command lines that a page shows for others to run: systemd, a container."""

from django.core.management import load_command_class
from django.core.management.base import CommandError

OURS = ("run_delayq", "delayq")


def refused(words: list[str]) -> str | None:
    """Why manage.py would not take these words; None when it does, or when the command is not ours."""
    name, *arguments = words
    if name not in OURS:
        return None
    try:
        parser = load_command_class("django_delayq", name).create_parser("manage.py", name)
        parser.called_from_command_line = False  # raise, don't exit
        parser.parse_args(arguments)
    except CommandError as error:
        return f"manage.py {' '.join(words)}: {error}"
    return None
