"""Name schedules on the command line, change them, and show them."""

from argparse import ArgumentParser
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from django.core.management.base import CommandError

from django_delayq.api.schedules import ScheduleInfo, get_delay_schedule, store_of
from django_delayq.brokers import get_backend
from django_delayq.management.support.arguments import Options, checked
from django_delayq.management.support.shapes import instant
from django_delayq.management.support.terminal import Write, to_words
from django_delayq.monitor.schedules import Upcoming, local_words, upcoming
from django_delayq.store.schedules import Changed
from django_delayq.support.audit import operator_of_process, record
from django_delayq.support.timestamps import to_epoch_ms
from django_delayq.support.units import to_text
from django_delayq.support.validation import check_name


def add_name(parser: ArgumentParser, nargs: str | None = None) -> None:
    """Add the argument NAME of a schedule, or several."""
    name = "name" if nargs in (None, "?") else "names"
    parser.add_argument(
        name,
        nargs=nargs,
        type=checked(partial(check_name, kind="name")),
        metavar="NAME",
        help="The name of a schedule.",
    )


def change_named(
    options: Options,
    action: str,
    change: Callable[..., Changed],
    done: str,
    write: Write,
    why_not: Callable[[ScheduleInfo], str],
    **facts: Any,
) -> None:
    """Change each of the named schedules once.

    Raises a `CommandError` that names those that were not changed, and says why.
    """
    names, using = list(dict.fromkeys(options["names"])), options["using"]
    try:
        changed = store_of(get_backend(using)).change_schedules(partial(change, names=names, **facts))
    except ValueError as error:  # a rule or a calendar
        raise CommandError(f"None is {done}: {error}") from error
    if changed:
        record(operator_of_process(), action, using, changed, **facts)
    write(f"{done} {len(changed)} of {len(names)}")
    if refused := [name for name in names if name not in changed]:
        raise CommandError(f"Not {done}: {', '.join(_why(name, using, why_not) for name in refused)}.")


def _why(name: str, using: str, why_not: Callable[[ScheduleInfo], str]) -> str:
    info = get_delay_schedule(name, using=using)
    return f"{name!r} ({'no such schedule' if info is None else why_not(info)})"


def state_words(info: ScheduleInfo) -> str:
    """Return what holds a schedule up, in words; "" if nothing does."""
    words = [f"paused: {info.reason}"] if info.paused_at else []
    words += ["gone from the code"] if info.gone_at else []
    words += [f"error: {info.error}"] if info.error else []
    words += ["over"] if info.is_over else []
    return ", ".join(words)


def when_words(info: ScheduleInfo, one: Upcoming, now: datetime) -> str:
    """Return when an occurrence is due by the clock of its zone, how far that is from now, and its own time if other.

    `one` is due after `now`.
    """
    away = f"(in {to_text(to_epoch_ms(one.due_at) - to_epoch_ms(now))})"
    occurrence = "" if one.due_at == one.at else f", for {local_words(info.rule, one.at)}"
    return f"{local_words(info.rule, one.due_at)} {away}{occurrence}"


def schedule_row(info: ScheduleInfo, now: datetime) -> Sequence[str]:
    """Return the cells of a schedule in the list of all."""
    following = upcoming(info, now, 1)
    return (
        info.name,
        rule_words(info),
        when_words(info, following[0], now) if following else "-",
        "-" if info.last_at is None else to_words(to_epoch_ms(info.last_at), to_epoch_ms(now)),
        state_words(info),
    )


def rule_words(info: ScheduleInfo) -> str:
    """Return the rule in words, "-" if it can't be read."""
    return "-" if info.rule is None else str(info.rule)


def schedule_shape(info: ScheduleInfo, now: datetime, count: int = 1) -> Mapping[str, Any]:
    """Return the documented JSON shape of one schedule, with its next `count` occurrences."""
    following = upcoming(info, now, count)
    return {
        "name": info.name,
        "origin": info.origin,
        "key": info.key,
        "queue": info.queue,
        "rule": None if info.rule is None else str(info.rule),
        **_instant("start", info.start),
        **_instant("until", info.until),
        "count": info.count,
        "so_far": info.so_far,
        "catch_up": info.catch_up,
        "overlap": info.overlap,
        **_instant("last", info.last_at),
        "message_id": info.message_id,
        "next": [_iso(one.at) for one in following],
        "next_due": [_iso(one.due_at) for one in following],
        **_instant("paused", info.paused_at),
        "reason": info.reason,
        **_instant("gone", info.gone_at),
        "is_over": info.is_over,
        "error": info.error,
    }


def _iso(at: datetime) -> str:
    return at.isoformat().replace("+00:00", "Z")


def _instant(name: str, at: datetime | None) -> dict[str, str | int | None]:
    return instant(name, None if at is None else to_epoch_ms(at))
