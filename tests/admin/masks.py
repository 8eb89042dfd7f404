"""Functions that a site might name in OPTIONS["mask"]."""

from typing import Any


def without_card(key: str, data: Any) -> Any:
    """Hides card numbers, in place."""
    if isinstance(data, dict) and "card" in data:
        data["card"] = f"masked for {key}"
    return data


def failing(key: str, data: Any) -> Any:
    """A hook with a fault."""
    raise RuntimeError(data)
