"""The counts of what a write has done. They add up."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from pyspark.sql.datasource import WriterCommitMessage

from django_delayq.spark.errors import SparkError
from django_delayq.spark.files import write_whole

_LATE_S = 60  # less than a minute counts as none


@dataclass
class Written(WriterCommitMessage):
    """The counts of one task, made in the task."""

    read: int
    sent: int
    already_there: int
    quarantined: int
    quarantine_file: str | None


class Placing(NamedTuple):
    """The messages that are not at the broker yet, and the relay's pace.

    `pace` is in messages per second, and `late_s` is by how many seconds the relay will be late. The pace is None if it
    was not measured, because the messages are few or the broker is away.
    """

    unplaced: int
    pace: int | None = None
    late_s: int = 0


@dataclass(frozen=True, slots=True)
class WriteSummary:
    """Rows read, messages sent, those whose id was there already or has ended, and rows put into quarantine.

    With a store, `unplaced` messages are in its table and not at the broker yet. The relay places them; see `Placing`.
    """

    read: int
    sent: int
    already_there: int
    quarantined: int
    seconds: float
    unplaced: int = 0
    relay_pace: int | None = None
    relay_late_s: int = 0

    @property
    def warning(self) -> str:
        """Return a warning if messages fall due faster than the relay places them; else an empty text."""
        if self.relay_late_s < _LATE_S:
            return ""
        return (
            f"Messages fall due faster than the relay places them: it places {self.relay_pace} a second, and the last "
            f"of those due at once would be some {self.relay_late_s} s late. Spread them, or send at a lower rate."
        )

    @property
    def rows_per_second(self) -> float:
        """Return the rows read per second of wall clock."""
        return self.read / self.seconds if self.seconds else 0.0

    def save(self, path: str) -> None:
        """Write it as JSON, at once or not at all."""
        write_whole(path, json.dumps(asdict(self)))


def read_summary(path: str) -> WriteSummary:
    """Read what `save` wrote."""
    return WriteSummary(**json.loads(Path(path).read_text()))


def total(written: Sequence[Written], seconds: float, placing: Placing) -> WriteSummary:
    """Add up the counts of all tasks. Raises `SparkError` if a row is not accounted for."""
    summary = WriteSummary(
        read=sum(each.read for each in written),
        sent=sum(each.sent for each in written),
        already_there=sum(each.already_there for each in written),
        quarantined=sum(each.quarantined for each in written),
        seconds=seconds,
        unplaced=placing.unplaced,
        relay_pace=placing.pace,
        relay_late_s=placing.late_s,
    )
    if summary.read != summary.sent + summary.already_there + summary.quarantined:
        raise SparkError(f"The counts do not add up, which is a fault of django-delayq; please report it: {summary}")
    return summary
