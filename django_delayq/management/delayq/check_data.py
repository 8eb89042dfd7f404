"""`delayq check-data`: read the data of waiting messages with the code of this process."""

from argparse import ArgumentParser

from django.core.management.base import CommandError

from django_delayq.api import registry
from django_delayq.management.support.arguments import Options, add_json, add_queue_and_key, whole_number
from django_delayq.management.support.shapes import write_json
from django_delayq.management.support.terminal import Write, counted
from django_delayq.monitor.data import CheckedData, KeyData, check_data

HELP = (
    "Read the data of every message that waits or is to come with the code of this process, as before a deploy, and "
    "say how many would fail. Changes nothing, and shows no data. Exit 1 when one would fail, or would wait for later "
    "code."
)


def add_arguments(parser: ArgumentParser) -> None:
    """Add `[QUEUE]`, `--key`, `--failed`, `--limit`, `--examples` and `--json`."""
    add_queue_and_key(parser)
    parser.add_argument("--failed", action="store_true", help="Also check the messages that failed for good.")
    parser.add_argument(
        "--limit", type=whole_number(1), metavar="N", help="Check N messages at most. Default: all of them."
    )
    parser.add_argument(
        "--examples",
        type=whole_number(0, 1000),
        default=5,
        metavar="N",
        help="How many messages to name of each key, with the reason. Default: %(default)s.",
    )
    add_json(parser)


def run(options: Options, write: Write) -> None:
    """Write what would fail, by key. Raises `CommandError` if anything would."""
    result = check_data(
        options["using"],
        queue=options["queue"],
        key=options["key"],
        failed=options["failed"],
        limit=options["limit"],
        examples=options["examples"],
    )
    keys = [result.keys[key] for key in sorted(result.keys)]
    key = options["key"]
    if key is not None and options["queue"] is None and not keys and registry.find(options["using"], key) is None:
        raise CommandError(str(registry.unknown_key(options["using"], key)))
    if options["json"]:
        write_json(write, _shape(options["using"], result, keys))
    else:
        for each in keys:
            _write_key(write, each)
        checked = counted(result.sum("checked"), "message")
        write(f"checked {checked}" if result.complete else f"checked {checked}, and left the others: --limit")
    if not all(each.is_well for each in keys):
        failing, later = result.sum("failing"), result.sum("later")
        raise CommandError(f"check-data: {failing} would fail, and {later} would wait for later code; named above.")


def _write_key(write: Write, each: KeyData) -> None:
    parts = [f"{each.failing} would fail"]
    if each.later:
        parts.append(f"{each.later} would wait for later code")
    if each.without_handler:
        parts.append(f"{each.without_handler} would wait for a handler: this code has none")
    write(f"{each.key}: of {each.checked}, {', '.join(parts)}")
    for what, reason in each.examples:
        write(f"    {what}: {reason}")


def _shape(using: str, result: CheckedData, keys: list[KeyData]) -> dict[str, object]:
    """Return the documented JSON shape."""
    return {
        "alias": using,
        "ok": all(each.is_well for each in keys),
        "complete": result.complete,
        "checked": result.sum("checked"),
        "failing": result.sum("failing"),
        "later": result.sum("later"),
        "without_handler": result.sum("without_handler"),
        "keys": [
            {
                "key": each.key,
                "checked": each.checked,
                "failing": each.failing,
                "later": each.later,
                "without_handler": each.without_handler,
                "examples": [{"id": what, "reason": reason} for what, reason in each.examples],
            }
            for each in keys
        ],
    }
