"""`delayq shards`: from one number of shards to another while messages wait."""

from argparse import ArgumentParser

from django.core.management.base import CommandError

from django_delayq.brokers import get_broker
from django_delayq.brokers.redis import RedisBroker
from django_delayq.brokers.redis.renumber import Renumbering
from django_delayq.conf import get_alias
from django_delayq.management.delayq.arguments import USAGE, Options, add_json
from django_delayq.management.delayq.shapes import write_json
from django_delayq.management.delayq.terminal import Write, counted
from django_delayq.store import StoredBroker

HELP = "How far a change of the number of shards is. Exit 1 until nothing is left by the old number."


def add_arguments(parser: ArgumentParser) -> None:
    add_json(parser)
    step = parser.add_mutually_exclusive_group()
    step.add_argument(
        "--switch", action="store_true", help="First put what is new by the new number. All processes must know both."
    )
    step.add_argument(
        "--end", action="store_true", help="Let processes in that know the new number only, if nothing is left."
    )


def run(options: Options, write: Write) -> None:
    using = options["using"]
    broker = _redis(using)
    if options["switch"] or options["end"]:
        _check_old_number(using)
    if options["switch"]:
        broker.switch_shards()
    change = broker.end_change_of_shards() if options["end"] else broker.change_of_shards()
    if options["json"]:
        write_json(write, _as_json(using, change))
    else:
        _write_change(write, change)
    if not (change.is_switched if options["switch"] else change.has_drained):
        raise CommandError(_why(change))


def _check_old_number(using: str) -> None:
    if get_alias(using).options.old_shards is None:
        raise CommandError(
            f'{using!r} has no OPTIONS["old_shards"]: give all processes the old number there, the new one as '
            f'"shards", and then switch.',
            returncode=USAGE,
        )


def _redis(using: str) -> RedisBroker:
    broker = get_broker(using)
    clock = broker.clock if isinstance(broker, StoredBroker) else broker
    if not isinstance(clock, RedisBroker):
        raise CommandError(f"{using!r} is not on Redis, and has no shards.", returncode=USAGE)
    return clock


def _as_json(using: str, change: Renumbering) -> dict[str, object]:
    return {
        "alias": using,
        "shards": change.count,
        "old_shards": change.old_count,
        "switched": change.is_switched,
        "drained": change.has_drained,
        "ended": change.has_ended,
        "left": {"messages": change.messages, "buried": change.buried, "alarms": change.alarms},
    }


def _write_change(write: Write, change: Renumbering) -> None:
    if change.old_count is None:
        write(f"{counted(change.count, 'shard')}, and no change of that")
        return
    write(f"{change.old_count} -> {counted(change.count, 'shard')}: {'' if change.is_switched else 'not '}switched")
    if change.is_switched:
        left = f"{counted(change.messages, 'message')}, {change.buried} buried, {counted(change.alarms, 'alarm')}"
        write(f"left by {change.old_count}: {left}")
    if change.has_ended:
        write("ended: take old_shards out of the settings of all processes")
    elif change.has_drained:
        write("drained: run this with --end")


def _why(change: Renumbering) -> str:
    if not change.is_switched:
        return "shards: not switched; once all processes have these settings, run this with --switch."
    buried = " Rescue or purge what is buried." if change.buried else ""
    alarms = " --end moves alarms that wait." if change.alarms else ""
    return f"shards: what is left by {change.old_count} has not ended.{buried}{alarms}"
