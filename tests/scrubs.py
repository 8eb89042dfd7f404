"""Functions that a site might name in OPTIONS["scrub"]."""

import re
from typing import Any


def without_cards(text: str) -> str:
    """Hides the numbers of cards."""
    return re.sub(r"\d{16}", "(card)", text)


def failing(text: str) -> str:
    """A function with a fault."""
    raise KeyError(text)


def no_text(text: str) -> Any:
    """A function that forgets to return."""
