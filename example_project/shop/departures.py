"""Read departures from a file of local times, and name the message that closes their check-in."""

import csv
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

from example_project.shop.models import Departure

NEW_YORK = ZoneInfo("America/New_York")


def read_departures(path: Path) -> Iterator[Departure]:
    """Yield the departures of a file of `example_project/data`, not saved yet."""
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            yield Departure(
                flight=row["carrier"] + row["flight"],
                origin=row["origin"],
                dest=row["dest"],
                departs_at=to_instant(row["scheduled_departure_local"]),
            )


def to_instant(local: str) -> datetime:
    """Return a local time in New York as an instant in UTC. If the local time exists twice, take the first."""
    return datetime.fromisoformat(local).replace(tzinfo=NEW_YORK, fold=0).astimezone(UTC)


def checkin_id(departure: Departure) -> str:
    return f"departure:{departure.pk}:close-checkin"
