"""Texts that are English in a log line, a command and a table, and in the viewer's language on a page. Pure values."""

from collections.abc import Mapping


class Text(str):
    """English, which remembers the template and the values that it was made of, so that a page can translate it."""

    template: str
    values: Mapping[str, object]


def text(template: str, /, **values: object) -> Text:
    """`template` with its `%(value)s`. Import it as `_`: so the catalogues find the template."""
    made = Text(template % values)
    made.template, made.values = template, values
    return made
