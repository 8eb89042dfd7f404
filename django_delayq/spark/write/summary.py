"""The counts of what a write has done. They add up."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from pyspark.sql.datasource import WriterCommitMessage

from django_delayq.spark.errors import SparkError
from django_delayq.spark.files import write_whole


@dataclass
class Written(WriterCommitMessage):
    """The counts of one task, made by the task itself."""

    read: int
    sent: int
    already_there: int
    quarantined: int
    quarantine_file: str | None


@dataclass(frozen=True, slots=True)
class WriteSummary:
    """Counts of a write: rows read, messages sent, skipped because the id exists or has ended, quarantined."""

    read: int
    sent: int
    already_there: int
    quarantined: int
    seconds: float

    @property
    def rows_per_second(self) -> float:
        """Return the rows read per second of wall clock."""
        return self.read / self.seconds if self.seconds else 0.0

    def save(self, path: str) -> None:
        """Write the summary as JSON, wholly or not at all."""
        write_whole(path, json.dumps(asdict(self)))


def read_summary(path: str) -> WriteSummary:
    """Read a summary that `save` wrote."""
    return WriteSummary(**json.loads(Path(path).read_text()))


def total(written: Sequence[Written], seconds: float) -> WriteSummary:
    """Add up the counts of all tasks. Raises `SparkError` if a row is not accounted for."""
    summary = WriteSummary(
        read=sum(each.read for each in written),
        sent=sum(each.sent for each in written),
        already_there=sum(each.already_there for each in written),
        quarantined=sum(each.quarantined for each in written),
        seconds=seconds,
    )
    if summary.read != summary.sent + summary.already_there + summary.quarantined:
        raise SparkError(f"The counts do not add up, which is a fault of django-delayq; please report it: {summary}")
    return summary
