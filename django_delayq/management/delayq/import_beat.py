"""`delayq import-beat`: write the periodic tasks of django-celery-beat as schedules."""

from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice
from typing import Any

from django.core.management.base import CommandError
from django.db import DEFAULT_DB_ALIAS, connections

from django_delayq.api import registry
from django_delayq.api.bulk import send_delay_messages
from django_delayq.api.operations import get_delay_message
from django_delayq.api.schedules import MessageOptions, new_schedule, save_schedule, store_of
from django_delayq.api.send import prepare
from django_delayq.brokers import get_backend
from django_delayq.brokers.base import Tables
from django_delayq.conf import Alias
from django_delayq.core.codec import loads
from django_delayq.core.errors import UnknownKey
from django_delayq.core.message import Send
from django_delayq.core.recurrence import Every, NewSchedule, Rule, span
from django_delayq.management.support.arguments import USAGE, Options, checked
from django_delayq.management.support.beat import BeatTask, has_tables, read_tasks
from django_delayq.management.support.crontab import crontab_rule
from django_delayq.management.support.terminal import Write
from django_delayq.models import Schedule
from django_delayq.monitor.schedules import local_words
from django_delayq.store import schedules
from django_delayq.support.audit import operator_of_process, record
from django_delayq.support.timestamps import from_ms
from django_delayq.support.validation import check_name, short_repr

HELP = "Write the periodic tasks of django-celery-beat as schedules. Exit 1 when one was refused."

DISABLED = "disabled in django-celery-beat"
CELERYS_OWN = "celery.backend_cleanup"
"""The task that django-celery-beat writes by itself."""
_SHOWN = 3


class _Left(Exception):
    """There is nothing to do for a task, for the reason that the text gives."""


@dataclass(frozen=True, slots=True)
class _Ready:
    """What a task becomes: in words, its next instants, and a function that writes it."""

    words: str
    following: list[str]
    write: Callable[[], object]


def add_arguments(parser: ArgumentParser) -> None:
    """Add `--database`, `--map` and `--dry-run`."""
    parser.add_argument(
        "--database",
        default=DEFAULT_DB_ALIAS,
        metavar="NAME",
        help="The database with the tables of django-celery-beat, as in DATABASES. Default: %(default)s.",
    )
    parser.add_argument(
        "--map",
        action="append",
        default=[],
        type=checked(_pair),
        metavar="TASK=KEY",
        help="The execute key of a Celery task, such as shop.tasks.close=order.close; may be repeated.",
    )
    parser.add_argument("--dry-run", action="store_true", help="Only say what it would write.")


def _pair(text: str) -> tuple[str, str]:
    task, equals, key = text.partition("=")
    if not task or not equals:
        raise ValueError(f"--map={short_repr(text)} has no '='; write it like shop.tasks.close=order.close.")
    return task, check_name(key, "key")


def run(options: Options, write: Write) -> None:
    """Write each task, and say what became of it. Raises `CommandError` if any was refused."""
    backend = get_backend(options["using"])
    store = store_of(backend)
    tasks = _tasks_in(options["database"])
    keys = _keys(options, tasks, backend.alias)
    now = from_ms(store.database.now_ms())
    written, left, refused = [], 0, 0
    for task in tasks:
        try:
            ready = _ready(task, keys, backend.alias, store, now)
        except _Left as reason:
            left += 1
            write(f"left {task.name}: {reason}")
            continue
        except (TypeError, ValueError, UnknownKey) as error:
            refused += 1
            write(f"refused {task.name}: {error}")
            continue
        if not options["dry_run"]:
            ready.write()
        written.append(task.name)
        write(f"{'would write' if options['dry_run'] else 'wrote'} {task.name}: {ready.words}")
        for following in ready.following:
            write(f"  {following}")
    if written and not options["dry_run"]:
        record(operator_of_process(), "import_beat", options["using"], written, database=options["database"])
    write(f"{'would write' if options['dry_run'] else 'wrote'} {len(written)}, left {left}, refused {refused}")
    if refused:
        raise CommandError(f"{refused} of {len(tasks)} refused, with the reasons above.")


def _tasks_in(database: str) -> list[BeatTask]:
    if database not in connections:
        raise CommandError(
            f"--database={short_repr(database)} is not in DATABASES; give one of {', '.join(connections)}.",
            returncode=USAGE,
        )
    if not has_tables(database):
        raise CommandError(
            f"Database {database!r} has no tables of django-celery-beat; name the one that has: --database NAME."
        )
    return list(read_tasks(database))


def _keys(options: Options, tasks: list[BeatTask], alias: Alias) -> Mapping[str, str]:
    """Return the keys by the tasks that `--map` gives. Raises `CommandError` for an unknown task or key."""
    known = {task.task for task in tasks}
    for task, key in options["map"]:
        if task not in known:
            raise CommandError(
                f"--map={task}={key}: no periodic task runs {task!r}; they run {', '.join(sorted(known))}."
            )
        if registry.find(alias.name, key) is None and alias.options.unknown_keys == "error":
            raise CommandError(f"--map={task}={key}: {registry.unknown_key(alias.name, key)}")
    return dict(options["map"])


def _ready(task: BeatTask, keys: Mapping[str, str], alias: Alias, store: Tables, now: datetime) -> _Ready:
    """Return what a task becomes. Raises `_Left`, and `ValueError` and others for what is refused."""
    key = keys.get(task.task) or (task.task if registry.find(alias.name, task.task) else None)
    if key is None and task.task == CELERYS_OWN:
        raise _Left("Celery's own; django-delayq prunes what ended by itself")
    if task.is_solar:
        raise ValueError("it has a solar schedule, and no rule follows the sun; give it a crontab.")
    if key is None:
        raise ValueError(f"task {task.task!r} has no handler under this key; give --map {task.task}=KEY.")
    if task.expires is not None and task.expires <= now:
        raise _Left(f"it expired at {task.expires.astimezone(UTC):%Y-%m-%d %H:%M} UTC")
    message: MessageOptions = {"queue": task.queue or None, "priority": task.priority}
    if task.expire_seconds is not None:
        message["expires"] = timedelta(seconds=task.expire_seconds)
    send = Send(key, _data_of(task), **message)
    if task.clocked is not None:
        return _once(task, task.clocked, send, alias, now)
    return _again(task, _rule_of(task), send, alias, store, now)


def _data_of(task: BeatTask) -> Any:
    """Return the data of the messages: the kwargs as an object, or else the only one of the args, or else None."""
    args, kwargs = _loaded("args", task.args or "[]"), _loaded("kwargs", task.kwargs or "{}")
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        raise ValueError(f"args={short_repr(task.args)}, kwargs={short_repr(task.kwargs)} are no list and object.")
    if len(args) > 1 or (args and kwargs):
        raise ValueError(
            f"args={short_repr(task.args)}, kwargs={short_repr(task.kwargs)}: a message has one value; give kwargs "
            "alone, which become an object, or one of the args alone."
        )
    return kwargs or (args[0] if args else None)


def _loaded(name: str, text: str) -> Any:
    try:
        return loads(text.encode())
    except ValueError as error:
        raise ValueError(f"{name}={short_repr(text)} is no JSON: {error}.") from error


def _rule_of(task: BeatTask) -> Rule:
    if task.crontab is not None:
        return crontab_rule(task.crontab)
    if task.interval is None:
        raise ValueError("it has no schedule.")
    every, period = task.interval["every"], task.interval["period"]
    if period == "days":  # of elapsed time, as Celery counts them
        return Every(hours=24 * every)
    if period not in ("hours", "minutes", "seconds"):
        raise ValueError(f"its interval is {every} {period}; give seconds or longer.")
    return Every(**{period: every})


def _once(task: BeatTask, at: datetime, send: Send, alias: Alias, now: datetime) -> _Ready:
    """Return the message of a task that runs once, at an instant. It is sent once, however often it is imported."""
    if get_delay_message(check_name(task.name, "name"), using=alias.name) is not None:
        raise _Left("its message is there already")
    if not task.enabled:
        raise _Left(DISABLED)
    if at <= now:
        raise _Left(f"its time is past: {at.astimezone(UTC):%Y-%m-%d %H:%M} UTC")
    sent = replace(send, at=at, id=task.name)
    prepare(sent, alias)  # so that a dry run refuses what a send would refuse
    write = partial(send_delay_messages, [sent], using=alias.name)
    return _Ready(f"a message of key {send.key!r}, once", [local_words(None, at)], write)


def _again(task: BeatTask, rule: Rule, send: Send, alias: Alias, store: Tables, now: datetime) -> _Ready:
    """Return the schedule of a task. Like Celery it waits for no end, and after an outage it runs once."""
    wanted = new_schedule(
        alias,
        task.name,
        Schedule.Origin.CALL,
        rule,
        send,
        start=task.start,
        until=task.expires,
        count=1 if task.one_off else None,
        overlap="allow",
        paused="" if task.enabled else DISABLED,
    )
    row = schedules.rows_of(store.database).filter(name=wanted.name).first()
    if row is not None:
        asked = schedules.columns_of(wanted)
        if row.gone_at is None and all(getattr(row, name) == value for name, value in asked.items()):
            raise _Left("it is there already, just like this")
        if row.origin != Schedule.Origin.CALL:
            raise ValueError(f"there is a schedule of this name already, from the {row.origin}; rename one of them.")
    elif task.one_off and task.enabled and task.has_run:
        raise _Left("it is to run once, and has run")
    schedules.check_times(wanted, now)
    return _Ready(", ".join(_words(wanted, row)), _following(wanted, row, now), partial(save_schedule, store, wanted))


def _words(wanted: NewSchedule, row: Schedule | None) -> Iterator[str]:
    yield f"key {wanted.header.key!r}"
    yield str(wanted.rule)
    if wanted.start is not None:
        yield f"from {local_words(None, wanted.start)} on"
    if wanted.until is not None:
        yield f"until {local_words(None, wanted.until)}"
    if wanted.count is not None:
        yield "once"
    if reason := _pause(wanted, row):
        yield f"paused: {reason}"


def _pause(wanted: NewSchedule, row: Schedule | None) -> str:
    """Return why it will be paused: one that is there keeps its pause, or has none."""
    return wanted.paused if row is None else row.reason


def _following(wanted: NewSchedule, row: Schedule | None, now: datetime) -> list[str]:
    if _pause(wanted, row):
        return []
    begin = now if wanted.start is None else max(now, wanted.start - timedelta(microseconds=1))
    found = islice(span(wanted.rule, begin, wanted.until), min(wanted.count or _SHOWN, _SHOWN))
    return [local_words(wanted.rule, at) for at in found]
