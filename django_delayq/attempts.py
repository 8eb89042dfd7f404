"""How often a message may start: what was sent with it says so, or its handler."""

from typing import Protocol


class Terms(Protocol):
    """What the header or the row of a message has, and its handler."""

    @property
    def at_most_once(self) -> bool: ...

    @property
    def max_attempts(self) -> int | None: ...


def is_at_most_once(sent: Terms | None, handler: Terms | None) -> bool:
    """Whether a message must not start a second time, whichever of the two says so."""
    return any(terms is not None and terms.at_most_once for terms in (sent, handler))


def max_attempts(sent: Terms | None, handler: Terms | None) -> int | None:
    """How many attempts a message may have: its own number, else its handler's; None where neither is known."""
    if is_at_most_once(sent, handler):
        return 1
    known = (terms.max_attempts for terms in (sent, handler) if terms is not None)
    return next((number for number in known if number is not None), None)
