"""`delayq shards`: from one number of shards to another while messages wait."""

from argparse import ArgumentParser

from django.core.management.base import CommandError

from django_delayq.brokers import get_broker
from django_delayq.brokers.redis import RedisBroker
from django_delayq.brokers.redis.renumber import Renumbering
from django_delayq.brokers.redis.replies import MAY_NOT
from django_delayq.errors import BrokerRefused
from django_delayq.management.delayq.arguments import USAGE, Options, add_json
from django_delayq.management.delayq.shapes import write_json
from django_delayq.management.delayq.terminal import Write, counted
from django_delayq.store import StoredBroker

_FOR_WORKERS = (
    "This command moves alarms, and forgets the old number once all has drained: a user who may only look, such as "
    "delayq-dashboard, can't; run it as one who may work, such as delayq-worker."
)
HELP = "How far a change of the number of shards is. Exit 1 until nothing is left by the old number."


def add_arguments(parser: ArgumentParser) -> None:
    add_json(parser)
    parser.add_argument(
        "--switch", action="store_true", help="First put what is new by the new number. All processes must know both."
    )


def run(options: Options, write: Write) -> None:
    using = options["using"]
    broker = _redis(using)
    try:
        change = _change(broker, using, options["switch"])
    except BrokerRefused as error:
        raise CommandError(f"{error} {_FOR_WORKERS}" if MAY_NOT in str(error) else str(error)) from error
    if options["json"]:
        write_json(write, _as_json(using, change))
    else:
        _write_change(write, change)
    if not change.has_drained:
        raise CommandError(_why(change))


def _change(broker: RedisBroker, using: str, switches: bool) -> Renumbering:
    if switches:
        if broker.change_of_shards().old_count is None:
            raise CommandError(
                f'{using!r} has no OPTIONS["old_shards"]: give all processes the old number there, the new one as '
                f'"shards", and then switch.',
                returncode=USAGE,
            )
        broker.switch_shards()
    return broker.change_of_shards()


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
    if change.has_drained:
        write("drained: take old_shards out of the settings of all processes")


def _why(change: Renumbering) -> str:
    if not change.is_switched:
        return "shards: not switched; once all processes have these settings, run this with --switch."
    buried = " Rescue or purge what is buried." if change.buried else ""
    return f"shards: what is left by {change.old_count} has not ended.{buried}"
