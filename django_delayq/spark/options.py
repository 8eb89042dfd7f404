"""Turn the options of the data source, which are text from the caller, into checked values."""

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from django_delayq.conf import DEFAULT_ALIAS
from django_delayq.spark.errors import SparkError
from django_delayq.spark.site import settings_module
from django_delayq.support.units import to_ms
from django_delayq.support.validation import check_priority, did_you_mean, short_repr

T = TypeVar("T")

_SPARKS = ("path", "checkpointlocation", "queryname")
"""The options that Spark itself reads."""


class Given:
    """The caller's options. Their names ignore case. `no_others` finds options that nothing has read."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._given = {name.lower(): value for name, value in options.items()}
        self._known: list[str] = []

    def text(self, name: str, default: str | None = None) -> str | None:
        """Return the text of an option; the default if it is missing or empty."""
        self._known.append(name)
        return self._given.get(name.lower()) or default

    def one_of(self, name: str, choices: Iterable[str], default: str) -> str:
        """Return an option that must be one of `choices`."""
        value = self.text(name) or default
        if value not in choices:
            raise SparkError(f"option {name}={short_repr(value)} is unknown: {did_you_mean(value, choices)}")
        return value

    def names(self, name: str) -> tuple[str, ...]:
        """Return names from a text with commas between them."""
        return tuple(part.strip() for part in (self.text(name) or "").split(",") if part.strip())

    def count(self, name: str, default: int) -> int:
        """Return a whole number of at least 1."""
        return self._parsed(name, default, _count)

    def priority(self, name: str) -> int | None:
        """Return a priority, as a send takes it."""
        return self._parsed(name, None, lambda text: check_priority(int(text)))

    def length_ms(self, name: str, default: str) -> int:
        """Return a length of time such as 30s in ms."""
        return self._parsed(name, to_ms(default, name), lambda text: to_ms(text, name))

    def site(self) -> tuple[str, str]:
        """Return the settings module and the alias."""
        return settings_module(self.text("settings")), self.text("using") or DEFAULT_ALIAS

    def no_others(self) -> None:
        """Raise `SparkError` for an option that nothing has read."""
        known = {name.lower() for name in self._known}
        for name in self._given:
            if name not in known and name not in _SPARKS:
                raise SparkError(f"option {name!r} is unknown: {did_you_mean(name, self._known)}")

    def _parsed(self, name: str, default: T, parse: Callable[[str], T]) -> T:
        text = self.text(name)
        try:
            return default if text is None else parse(text)
        except (TypeError, ValueError) as error:
            raise SparkError(f"option {name}={short_repr(text)}: {error}") from error


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError("give 1 or more.")
    return number
