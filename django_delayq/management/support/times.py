"""Write epoch milliseconds for people and programs."""

from django_delayq.support.timestamps import from_ms
from django_delayq.support.units import to_text


def to_iso(milliseconds: int | None) -> str | None:
    """Return ISO 8601 in UTC to the millisecond; None for None, and for an instant outside the years 1 to 9999."""
    if milliseconds is None:
        return None
    try:
        return from_ms(milliseconds).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except OverflowError:  # someone else wrote it
        return None


def instant(name: str, milliseconds: int | None) -> dict[str, str | int | None]:
    """Return an instant for programs: `<name>_at` in ISO 8601, and `<name>_ms`."""
    return {f"{name}_at": to_iso(milliseconds), f"{name}_ms": milliseconds}


def end_words(until_ms: int | None, now_ms: int) -> str:
    """Return the end of a pause for people."""
    return "until it is resumed" if until_ms is None else f"until {to_words(until_ms, now_ms)}"


def to_words(milliseconds: int | None, now_ms: int) -> str:
    """Return an instant for people: when it is, and how far from now."""
    if milliseconds is None:
        return "-"
    shown = to_iso(milliseconds) or f"{milliseconds} ms"
    if milliseconds > now_ms:
        return f"{shown} (in {to_text(milliseconds - now_ms)})"
    return f"{shown} ({to_text(now_ms - milliseconds)} ago)"
