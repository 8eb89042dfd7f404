"""`manage.py delayq`: look into a delayq and act on its messages."""

from argparse import ArgumentParser
from typing import Any, Protocol

from django.core.management.base import BaseCommand, CommandParser, no_translations

from django_delayq.conf import DEFAULT_ALIAS
from django_delayq.management.delayq import (
    audit,
    backfill_schedule,
    cancel,
    check_data,
    errors,
    explain,
    forget,
    import_beat,
    list as list_messages,
    pause,
    pause_schedule,
    peek,
    prune,
    purge,
    remove_schedule,
    reschedule,
    rescue,
    resolve,
    resume,
    resume_schedule,
    run_now,
    run_schedule,
    schedules,
    send_again,
    status,
    stop_embedded,
    undo,
)
from django_delayq.management.support.arguments import Options, add_djangos_own
from django_delayq.management.support.terminal import Write, speaking


class Subcommand(Protocol):
    """The interface of each module in management/delayq/."""

    HELP: str

    def add_arguments(self, parser: ArgumentParser) -> None: ...

    def run(self, options: Options, write: Write) -> None: ...


SUBCOMMANDS: dict[str, Subcommand] = {
    "status": status,
    "peek": peek,
    "errors": errors,
    "list": list_messages,
    "explain": explain,
    "audit": audit,
    "check-data": check_data,
    "cancel": cancel,
    "reschedule": reschedule,
    "run-now": run_now,
    "resolve": resolve,
    "rescue": rescue,
    "send-again": send_again,
    "undo": undo,
    "purge": purge,
    "prune": prune,
    "forget": forget,
    "pause": pause,
    "resume": resume,
    "schedules": schedules,
    "pause-schedule": pause_schedule,
    "resume-schedule": resume_schedule,
    "run-schedule": run_schedule,
    "backfill-schedule": backfill_schedule,
    "remove-schedule": remove_schedule,
    "import-beat": import_beat,
    "stop-embedded": stop_embedded,
}


class Command(BaseCommand):
    """The command `delayq`. It runs the module that `SUBCOMMANDS` has for the subcommand."""

    requires_system_checks = ()  # a look must be possible when something is wrong, and its output holds nothing else
    help = "Look into a delayq and act on its messages. Exit codes: 0 done, 1 not done, 2 wrong command line."

    def add_arguments(self, parser: CommandParser) -> None:
        subparsers = parser.add_subparsers(title="subcommands", dest="subcommand", metavar="SUBCOMMAND", required=True)
        for name, subcommand in SUBCOMMANDS.items():
            subparser = subparsers.add_parser(name, help=subcommand.HELP, description=subcommand.HELP)
            subparser.add_argument(
                "--using", default=DEFAULT_ALIAS, metavar="ALIAS", help="The alias in DELAYQ. Default: %(default)s."
            )
            subcommand.add_arguments(subparser)
            add_djangos_own(subparser)

    @no_translations  # a command speaks English, whatever the site does
    def handle(self, *args: Any, **options: Any) -> None:
        with speaking(self.stdout, options["using"]) as write:
            SUBCOMMANDS[options["subcommand"]].run(options, write)
