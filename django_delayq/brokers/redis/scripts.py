"""Load the Lua scripts of this package."""

from functools import cache
from importlib.resources import files

from django_delayq.brokers.redis.client import Script


@cache
def load(name: str) -> Script:
    """Return the script lua/<name>.lua with the parts that its first line names ("-- uses: record sets")."""
    folder = files(__package__) / "lua"
    text = (folder / f"{name}.lua").read_text()
    first, _, _ = text.partition("\n")
    parts = first.removeprefix("-- uses:").split() if first.startswith("-- uses:") else []
    return Script.of(name, "\n".join([*((folder / "lib" / f"{part}.lua").read_text() for part in parts), text]))
