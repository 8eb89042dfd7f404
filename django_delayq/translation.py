"""Say in the active language what a log and a command say in English."""

from django.utils.translation import get_language, gettext

from django_delayq.core.recurrence import Cron, Rule, without_holidays
from django_delayq.support.translatable import Text, text as _


def translated(told: object) -> str:
    """Return a text, or the reason of an error, in the active language.

    Words that are not ours, such as a server's, stay.
    """
    if isinstance(told, Exception) and len(told.args) == 1:
        told = told.args[0]
    if not isinstance(told, Text):
        return str(told)
    values = {
        name: translated(value) if isinstance(value, str | Exception) else value for name, value in told.values.items()
    }
    return gettext(told.template) % values


def rule_words(rule: Rule) -> str:
    """Return a rule that recurs in words of the active language.

    cronsim, which has the words of a cron expression, speaks English alone. Elsewhere the expression itself is told.
    """
    if not isinstance(rule, Cron) or (get_language() or "en").startswith("en"):
        return translated(str(rule))
    words = _("%(times)s in %(zone)s", times=rule.expression, zone=rule.zone)
    return translated(without_holidays(words, rule.calendar))
