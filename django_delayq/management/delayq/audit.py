"""`delayq audit`: check that each message is in exactly one place."""

from argparse import ArgumentParser

from django.core.management.base import CommandError

from django_delayq.brokers import get_backend
from django_delayq.brokers.base import Audit, Backend
from django_delayq.management.support.arguments import USAGE, Options, add_json
from django_delayq.management.support.shapes import write_json
from django_delayq.management.support.terminal import Write, counted
from django_delayq.support.audit import operator_of_process, record

HELP = "Hold what was sent against where it is now. Exit 1 when it does not add up."

_PLACES = {"pending": "pending", "ready": "ready", "running": "running", "failed": "error"}
"""The words for people, and the keys of `Audit.places` that they stand for."""
_ENDS = ("finished", "cancelled", "purged", "dropped")


def add_arguments(parser: ArgumentParser) -> None:
    """Add `--json` and `--repair`."""
    add_json(parser)
    parser.add_argument(
        "--repair",
        action="store_true",
        help="First mend what has one right answer, with a store: put missing alarms, move a sequence on.",
    )


def run(options: Options, write: Write) -> None:
    """Write the sums and the differences. Raises `CommandError` if there are any differences."""
    backend = get_backend(options["using"])
    repaired = _repair(backend, options["using"]) if options["repair"] else []
    audit = backend.queue.audit()
    if options["json"]:
        write_json(
            write,
            {
                "alias": options["using"],
                "ok": not audit.differences,
                "totals": audit.totals,
                "places": audit.places,
                "differences": audit.differences,
                "repaired": repaired,
                "notes": audit.notes,
            },
        )
    else:
        for mended in repaired:
            write(f"repaired: {mended}")
        _write_sum(write, audit)
    if audit.differences:
        raise CommandError(f"audit: {counted(len(audit.differences), 'difference')}, named above.")


def _repair(backend: Backend, using: str) -> list[str]:
    if backend.store is None:
        raise CommandError(
            f"{using!r} has no store, so nothing says what is right: look at the differences that audit names.",
            returncode=USAGE,
        )
    repaired = backend.store.repair()
    record(operator_of_process(), "repair", using, repaired=len(repaired), what="; ".join(repaired) or None)
    return repaired


def _write_sum(write: Write, audit: Audit) -> None:
    parts = [f"{word} {audit.places.get(name, 0)}" for word, name in _PLACES.items()]
    parts += [f"{name} {audit.totals.get(name, 0)}" for name in _ENDS]
    write(f"sent {audit.totals.get('sent', 0)}: {', '.join(parts)}")
    for note in audit.notes:
        write(f"note: {note}")
    for difference in audit.differences:
        write(f"difference: {difference}")
    if not audit.differences:
        write("audit: ok")
