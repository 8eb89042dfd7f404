"""What was told in English, in the language that is active."""

from django.utils.translation import gettext

from django_delayq.support.texts import Text


def translated(told: object) -> str:
    """A text, or the reason of an error, translated as far as it is one of ours; a server's own words stay."""
    if isinstance(told, Exception) and len(told.args) == 1:
        told = told.args[0]
    if not isinstance(told, Text):
        return str(told)
    values = {
        name: translated(value) if isinstance(value, str | Exception) else value for name, value in told.values.items()
    }
    return gettext(told.template) % values
