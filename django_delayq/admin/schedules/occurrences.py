"""What a schedule is and when it comes next, in words and instants."""

from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import replace
from datetime import datetime
from itertools import islice

from django.utils.translation import gettext as _

from django_delayq.admin.formatting import visible
from django_delayq.core.occurrences import instant_now, occurrence_id
from django_delayq.core.recurrence import Rule, rule_of, to_come, words_of_window, zone_in
from django_delayq.core.rules import decode
from django_delayq.models import Schedule
from django_delayq.support.timestamps import from_ms, to_epoch_ms
from django_delayq.support.units import to_text
from django_delayq.translation import rule_words, translated

SHOWN = 10
"""How many of the next occurrences a page shows."""


def shown(row: Schedule) -> Schedule:
    """Return a copy of a row for display, with its texts from outside changed by `visible`."""
    changed = copy(row)
    for name in ("name", "key", "message_id", "reason", "error"):
        setattr(changed, name, visible(getattr(row, name)))
    return changed


def rule_in_words(row: Schedule) -> str:
    """Return the rule in words, or why it can't be read."""
    rule, why_not = rule_in(row)
    return why_not if rule is None else visible(rule_words(rule))


def rule_in(row: Schedule) -> tuple[Rule | None, str]:
    """Return the rule of a schedule, or None and why it can't be read."""
    try:
        return rule_of(row.rule), ""
    except Exception as error:  # noqa: BLE001 - an extra or a zone is missing, or a calendar is not set up any more
        return None, visible(translated(error))


def window_in_words(row: Schedule) -> str:
    """Return the window and the spread of a schedule's messages in words, or why they can't be read."""
    try:
        rule = decode(row.window)
    except ValueError as error:
        return visible(translated(error))
    windows = [translated(words_of_window(each)) for each in rule.windows]
    spread = [_("spread over %(length)s") % {"length": to_text(rule.spread_ms)}] if rule.spread_ms else []
    return visible("; ".join([*windows, *spread]))


def due_times(name: str, window: str, rule: Rule | None) -> Callable[[datetime], datetime] | None:
    """Return the function that says when the message of an occurrence is due; None without a window and a spread."""
    if not window:
        return None
    zone = zone_in(rule)

    def due_at(at: datetime) -> datetime:
        return from_ms(replace(decode(window), from_ms=to_epoch_ms(at)).due_ms(occurrence_id(name, at, zone)))

    return due_at


def zone_of_rule(rule: Rule | None) -> str:
    """Return the name of the zone in which the times of a rule are told. Intervals of hours have none."""
    return zone_in(rule) or "UTC"


def state_in_words(row: Schedule) -> str:
    """Return the state of a schedule in words."""
    if row.paused_at is not None:
        return _("paused: %(reason)s") % {"reason": row.reason}
    if row.gone_at is not None:
        return _("not in the code any more")
    if row.error:
        return _("its rule fails: %(error)s") % {"error": row.error}
    return _("over") if row.look_at is None else _("active")


def may_be_removed(row: Schedule) -> bool:
    """Return whether a schedule stays removed. One that is in the code would come back with the next worker."""
    return row.origin != Schedule.Origin.CODE or row.gone_at is not None


def next_due(row: Schedule, now: datetime) -> datetime | None:
    """Return when the next occurrence is due by the rule and the window; None if none comes, or one of them fails."""
    rule, _why_not = rule_in(row)
    if row.look_at is None or rule is None:
        return None
    try:
        at, due_at = next(following(row, rule, now), None), due_times(row.name, row.window, rule)
        return due_at(at) if at and due_at else at
    except Exception:  # noqa: BLE001 - a calendar is the site's code
        return None


def next_ten(row: Schedule, rule: Rule, now: datetime) -> list[datetime]:
    """Return the next occurrences. Those of a paused schedule are what would come if it were resumed now."""
    is_over = row.look_at is None and row.paused_at is None
    return [] if is_over or row.gone_at else list(islice(following(row, rule, now), SHOWN))


def following(row: Schedule, rule: Rule, now: datetime) -> Iterator[datetime]:
    """Yield the occurrences from now on. The first is the one that was put last, if it is not due yet."""
    last_at = None if row.last_at is None or row.look_at is None else instant_now(row.message_id, row.last_at)
    due_at = due_times(row.name, row.window, rule)
    if last_at is not None and (due_at(last_at) if due_at else last_at) > now:
        yield last_at
    left = None if row.most is None else max(row.most - row.put_count, 0)
    yield from to_come(rule, max(now, last_at or now), row.start_at, row.until_at, left)
