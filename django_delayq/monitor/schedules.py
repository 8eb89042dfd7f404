"""Say which occurrences of a schedule are to come, and what it does with one that is asked about."""

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import NamedTuple
from zoneinfo import ZoneInfo

from django.utils.formats import date_format
from django.utils.translation import gettext as _

from django_delayq.api.schedules import ScheduleInfo
from django_delayq.core.recurrence import Rule, to_come, zone_in
from django_delayq.support.timestamps import EPOCH
from django_delayq.translation import rule_words


class Upcoming(NamedTuple):
    """An occurrence that is to come, and when its message is due: later in a window, or when it was rescheduled to."""

    at: datetime
    due_at: datetime


def upcoming(info: ScheduleInfo, now: datetime, count: int = 10, beyond: datetime = EPOCH) -> list[Upcoming]:
    """Return what is due after `now`, at most `count`, as far as the schedule goes on by itself.

    The first may wait as a message already. What was missed is not among them, and no occurrence up to `beyond` is.
    """
    if info.rule is None or info.last_at is None or info.paused_at or info.gone_at:
        return []
    waits = info.message_due_at is not None and info.message_due_at > now and info.last_at > beyond
    found = [Upcoming(info.last_at, info.message_due_at)] if waits and info.message_due_at else []
    if info.is_over:
        return found
    left = None if info.count is None else max(info.count - info.so_far, 0)
    following = to_come(info.rule, max(info.last_at, now, beyond), info.start, info.until, left)
    try:
        found += (Upcoming(at, info.due_at(at)) for at in islice(following, count))
    except Exception:  # noqa: BLE001 - a calendar is the site's code; `error` says so once a worker has tried
        return found
    return found[:count]


def local_words(rule: Rule | None, at: datetime) -> str:
    """Return an occurrence as the clock of the rule's zone shows it: Mon 2026-11-30 09:00 Europe/Rome."""
    zone = zone_in(rule)
    local = at.astimezone(UTC if zone is None else ZoneInfo(zone))
    return f"{date_format(local, 'D')} {local:%Y-%m-%d %H:%M}{f':{local:%S}' if local.second else ''} {local.tzinfo}"


def in_words(info: ScheduleInfo, occurrence: datetime, now: datetime) -> str:
    """Return in the active language which schedule a message is an occurrence of, and what follows on that one."""
    told = _("It is an occurrence of the schedule %(name)s: %(rule)s.") % {
        "name": repr(info.name),
        "rule": _("its rule can't be read") if info.rule is None else rule_words(info.rule),
    }
    return f"{told} {' '.join(what_follows(info, now, occurrence))}"


def what_follows(info: ScheduleInfo, now: datetime, occurrence: datetime = EPOCH) -> Iterator[str]:
    """Yield sentences in the active language: what holds the schedule up, or else what follows on an occurrence."""
    if info.error:
        yield _("The next occurrence could not be found: %(error)s") % {"error": info.error}
    if info.paused_at:
        yield _("The schedule is paused: %(reason)s. Nothing follows until it is resumed.") % {"reason": info.reason}
    if info.gone_at:
        yield _("The schedule is not in the code any more, so nothing follows.")
    if info.error or info.paused_at or info.gone_at:
        return
    following = upcoming(info, now, 1, beyond=occurrence)
    if following:
        at, due_at = following[0]
        yield _("The next occurrence is %(at)s.") % {"at": local_words(info.rule, at)}
        if due_at != at:
            yield _("Its message is due at %(at)s.") % {"at": local_words(info.rule, due_at)}
    else:
        yield _("The schedule is over: there is no occurrence any more.")


def why_never_put(info: ScheduleInfo, at: datetime, now: datetime) -> str:
    """Return in the active language why there is no message of an occurrence that a schedule may have had."""
    if info.last_at is None or at > info.last_at:
        return " ".join([_("It was never put."), *what_follows(info, now)])
    left = _("It was put and its row was pruned or purged, or it was left out: by a pause, by overlap or by catch_up.")
    return " ".join([left, *what_follows(info, now)])
