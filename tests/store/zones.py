"""Change the rules of a time zone for a test."""

import shutil
import zoneinfo
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.resources import as_file, files
from pathlib import Path

from django_delayq.core import human_time


def _zone_file(name: str) -> Path:
    for path in zoneinfo.TZPATH:
        if (found := Path(path) / name).exists():
            return found
    with as_file(files("tzdata") / "zoneinfo" / name) as found:
        return found


def _forget_zones() -> None:
    zoneinfo.ZoneInfo.clear_cache()
    human_time._zone_named.cache_clear()


@contextmanager
def zones_that_change(directory: Path) -> Iterator[Callable[[str, str], None]]:
    """Yield a function that gives one zone the rules of another, as a release of the time-zone database does.

    The rules are those of files in `directory` until the block ends.
    """
    before = zoneinfo.TZPATH
    zoneinfo.reset_tzpath(to=[str(directory), *before])

    def change(zone: str, like: str) -> None:
        (directory / zone).parent.mkdir(exist_ok=True)
        shutil.copy(_zone_file(like), directory / zone)
        _forget_zones()

    try:
        yield change
    finally:
        zoneinfo.reset_tzpath(to=before)
        _forget_zones()
