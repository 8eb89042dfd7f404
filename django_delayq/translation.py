"""Say in the active language what a log and a command say in English."""

from django.utils.translation import gettext

from django_delayq.support.translatable import Text


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
