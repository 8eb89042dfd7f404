"""`delayq stop-embedded`: stop the Redis server behind embedded://."""

from argparse import ArgumentParser

from django.core.management.base import CommandError

from django_delayq.brokers.redis.client import embedded_directory, hide_password, stop_embedded
from django_delayq.conf import get_alias
from django_delayq.management.support.arguments import Options
from django_delayq.management.support.terminal import Write
from django_delayq.support.audit import operator_of_process, record

HELP = "Stop the Redis server of embedded://, its data on disk. A site or worker that still runs starts it again."


def add_arguments(parser: ArgumentParser) -> None:
    """Add nothing: `--using` names the alias."""


def run(options: Options, write: Write) -> None:
    """Stop the server. Raises `CommandError` if the alias has no embedded server."""
    location = get_alias(options["using"]).location
    directory = embedded_directory(location)
    if directory is None:
        shown = hide_password(location) if isinstance(location, str) else "a dict"
        raise CommandError(f"LOCATION of alias {options['using']!r} is {shown}; only embedded:// is stopped here.")
    stopped = stop_embedded(directory)
    if stopped:
        record(operator_of_process(), "stop-embedded", options["using"], directory=directory)
    write(f"stopped the embedded Redis on {directory}" if stopped else f"no embedded Redis runs on {directory}")
