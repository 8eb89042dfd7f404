"""Departures from a file of local times, and the message that closes their check-in."""

import csv
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

from example_project.shop.models import Departure

NEW_YORK = ZoneInfo("America/New_York")


def read_departures(path: Path) -> Iterator[Departure]:
    """The departures of a file of `example_project/data`, not saved yet."""
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            yield Departure(
                flight=row["carrier"] + row["flight"],
                origin=row["origin"],
                dest=row["dest"],
                departs_at=to_instant(row["scheduled_departure_local"]),
            )


def to_instant(local: str) -> datetime:
    """A local time in New York in UTC, where an hour less is an hour less. Of an hour that exists twice, the first."""
    return datetime.fromisoformat(local).replace(tzinfo=NEW_YORK, fold=0).astimezone(UTC)


def checkin_id(departure: Departure) -> str:
    return f"departure:{departure.pk}:close-checkin"
