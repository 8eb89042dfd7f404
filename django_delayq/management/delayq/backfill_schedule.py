"""`delayq backfill-schedule`: put the occurrences of a span of time."""

from argparse import ArgumentParser
from datetime import datetime

from django.core.management.base import CommandError

from django_delayq.api.schedules import backfill_delay_schedule, get_delay_schedule, occurrences_to_backfill
from django_delayq.management.support.arguments import USAGE, Options, add_instant
from django_delayq.management.support.schedules import add_name
from django_delayq.management.support.terminal import Write, counted, to_iso
from django_delayq.monitor.schedules import local_words
from django_delayq.support.audit import operator_of_process, record
from django_delayq.support.timestamps import from_ms

HELP = "Put a message for each occurrence of a schedule from one instant to another. The past ones are due now."

_SHOWN = 10


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments for the name and the span, and `--dry-run`."""
    add_name(parser)
    add_instant(parser, "from", "The first instant: ISO 8601 with an offset from UTC.", required=True)
    add_instant(parser, "until", "The last one.", required=True)
    parser.add_argument("--dry-run", action="store_true", help="Only say which messages it would put.")


def run(options: Options, write: Write) -> None:
    """Put the messages, and write how many. Raises `CommandError` for a span that is backwards or too long."""
    if options["until_ms"] < options["from_ms"]:
        raise CommandError(
            f"--until={to_iso(options['until_ms'])} is before --from={to_iso(options['from_ms'])}; give a later one.",
            returncode=USAGE,
        )
    name, using = options["name"], options["using"]
    start, until = from_ms(options["from_ms"]), from_ms(options["until_ms"])
    try:
        if options["dry_run"]:
            _show(name, occurrences_to_backfill(name, start=start, until=until, using=using), using, write)
            return
        put = backfill_delay_schedule(name, start=start, until=until, using=using)
    except ValueError as error:
        raise CommandError(str(error)) from error
    if put:
        span = {"start": start.isoformat(), "until": until.isoformat()}
        record(operator_of_process(), "backfill_schedule", using, schedule=name, **span, put=put)
    write(f"put {counted(put, 'message')}")


def _show(name: str, found: list[datetime], using: str, write: Write) -> None:
    write(f"would put {counted(len(found), 'message')}")
    if (info := get_delay_schedule(name, using=using)) is None:  # removed meanwhile
        return
    for at in found[:_SHOWN]:
        write(f"  {local_words(info.rule, at)}")
    if len(found) > _SHOWN:
        write(f"  … and {len(found) - _SHOWN} more")
