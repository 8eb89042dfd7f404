"""Define text that is English in log lines, commands and tables, and in the viewer's language on a page."""

from collections.abc import Mapping


class Text(str):
    """English text that remembers its template and the values in it, so that a page can translate it."""

    template: str
    values: Mapping[str, object]


def text(template: str, /, **values: object) -> Text:
    """Return `template` filled in with `values`. Import it as `_`, so that the catalogues find the template."""
    made = Text(template % values)
    made.template, made.values = template, values
    return made
