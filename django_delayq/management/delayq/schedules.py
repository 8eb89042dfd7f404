"""`delayq schedules`: list the schedules, or show one with its next occurrences."""

from argparse import ArgumentParser
from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import partial

from django.core.management.base import CommandError

from django_delayq.api.schedules import ScheduleInfo, get_delay_schedule, list_delay_schedules, store_of
from django_delayq.brokers import get_backend
from django_delayq.core.codec import dumps
from django_delayq.core.recurrence import words_of_window
from django_delayq.management.support.arguments import USAGE, Options, add_json, checked
from django_delayq.management.support.schedules import (
    add_name,
    rule_words,
    schedule_row,
    schedule_shape,
    state_words,
    when_words,
)
from django_delayq.management.support.shapes import data_text, write_json
from django_delayq.management.support.terminal import Write, to_words, write_table
from django_delayq.monitor.schedules import upcoming
from django_delayq.support.timestamps import from_ms, to_epoch_ms
from django_delayq.support.units import to_text
from django_delayq.support.validation import check_name

HELP = "The schedules with their rules, next due times and states; with NAME, one and its next ten."

_MANY = 10


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments for the name, `--key`, `--prefix` and `--json`."""
    add_name(parser, "?")
    for option, kind, text in (
        ("--key", "key", "Schedules of this execute key."),
        ("--prefix", "prefix", "Schedules whose names begin with this."),
    ):
        parser.add_argument(option, type=checked(partial(check_name, kind=kind)), metavar=kind.upper(), help=text)
    add_json(parser)


def run(options: Options, write: Write) -> None:
    """Write the schedules, or the one with the name. Raises `CommandError` if there is none with it."""
    using, name = options["using"], options["name"]
    now = from_ms(store_of(get_backend(using)).database.now_ms())
    if name is not None:
        if options["key"] is not None or options["prefix"] is not None:
            raise CommandError("Give NAME, or --key and --prefix, which search.", returncode=USAGE)
        info = get_delay_schedule(name, using=using)
        if info is None:
            raise CommandError(f"There is no schedule {name!r} in {using!r}; `delayq schedules` lists all.")
        if options["json"]:
            write_json(write, schedule_shape(info, now, _MANY))
            return
        for line in _lines(info, now):
            write(line)
        return
    found = list_delay_schedules(key=options["key"], name_prefix=options["prefix"], using=using)
    if options["json"]:
        write_json(write, [schedule_shape(info, now) for info in found])
        return
    rows = [schedule_row(info, now) for info in found]
    write_table(write, ("NAME", "RULE", "NEXT", "LAST PUT", "STATE"), rows)
    if not rows:
        write("No schedule was found.")


def _lines(info: ScheduleInfo, now: datetime) -> Iterator[str]:
    now_ms = to_epoch_ms(now)
    yield f"{info.name}: {state_words(info) or 'goes on'}"
    yield f"for: key {info.key!r} in queue {info.queue!r}"
    yield f"rule: {rule_words(info)}"
    if info.window:
        yield f"window: {'; '.join(map(str, map(words_of_window, info.window)))}"
    if info.spread:
        yield f"spread: over {to_text(info.spread / timedelta(milliseconds=1))}"
    yield f"from: {info.origin}"
    for name, at in (("start", info.start), ("until", info.until)):
        if at is not None:
            yield f"{name}: {to_words(to_epoch_ms(at), now_ms)}"
    yield f"occurrences so far: {info.so_far}" + ("" if info.count is None else f" of {info.count}")
    yield f"catch-up: {info.catch_up}, overlap: {info.overlap}"
    if info.last_at is not None:
        yield f"last: {to_words(to_epoch_ms(info.last_at), now_ms)}, message {info.message_id}"
    yield f"data: {data_text(dumps(info.data))}"
    following = upcoming(info, now, _MANY)
    yield "next:" if following else "next: none"
    for one in following:
        yield f"  {when_words(info, one, now)}"
