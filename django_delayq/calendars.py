"""Find the calendars that CALENDARS names: dates, a function of the site, or a country of the library `holidays`."""

from collections.abc import Callable
from datetime import date
from functools import cache
from inspect import signature
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from django_delayq.conf import HOLIDAYS, valid_aliases
from django_delayq.core.human_time import Calendar
from django_delayq.support.translatable import text as _
from django_delayq.support.validation import did_you_mean

_found: dict[str, Calendar] = {}


def find_calendar(name: str) -> Calendar:
    """Return the calendar of a name in CALENDARS, of whichever alias, because a rule belongs to none.

    Raises `ValueError` if no alias has it, and `ImproperlyConfigured` if it is of no use.
    """
    calendar = _found.get(name)
    if calendar is None:
        by_alias = [alias.calendars for alias in valid_aliases()]
        configured = {calendars[name] for calendars in by_alias if name in calendars}
        if not configured:
            known = {each for calendars in by_alias for each in calendars}
            near = did_you_mean(name, known)
            raise ValueError(_("calendar=%(calendar)s is not in CALENDARS: %(near)s", calendar=repr(name), near=near))
        if len(configured) > 1:
            raise ImproperlyConfigured(f'CALENDARS["{name}"] is another one in another alias; give it another name.')
        calendar = _found[name] = load_calendar(name, *configured)
    return calendar


def load_calendar(name: str, configured: frozenset[date] | str) -> Calendar:
    """Return a calendar as it is set up. Raises `ImproperlyConfigured`, naming the value and the fix."""
    if not isinstance(configured, str):
        return configured
    try:
        if configured.startswith(HOLIDAYS):
            return _holidays_of(configured.removeprefix(HOLIDAYS))
        function: Callable[[date], bool] = import_string(configured)
        if isinstance(function, type):
            raise TypeError("it is a class; name a function of a date")
        signature(function).bind(date.min)
    except (ImportError, NotImplementedError, TypeError, ValueError) as error:
        raise ImproperlyConfigured(f'CALENDARS["{name}"]={configured!r} is no calendar: {error}') from error
    return function


def _holidays_of(place: str) -> Callable[[date], str | None]:
    """Return the function that names the public holidays of a country, such as "IT", or a part of one, as "US-CA"."""
    try:
        from holidays import country_holidays  # late: it is an extra
    except ImportError as error:
        raise ImportError(f"{error}; pip install 'django-delayq[holidays]'") from error

    country, _dash, part = place.partition("-")

    @cache
    def in_year(year: int) -> dict[date, str]:  # their own object fills itself, which another thread may see half done
        return dict(country_holidays(country, subdiv=part or None, years=year, expand=False))

    in_year(2000)  # raises for what it does not know
    return lambda day: in_year(day.year).get(day)


def _forget(*, setting: str, **kwargs: Any) -> None:
    if setting == "DELAYQ":
        _found.clear()


setting_changed.connect(_forget, dispatch_uid="delayq.calendars")
