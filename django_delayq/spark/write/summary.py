"""What a write has done, in counts that add up."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from pyspark.sql.datasource import WriterCommitMessage

from django_delayq.spark.errors import SparkError


@dataclass
class Written(WriterCommitMessage):
    """What one task has done, as counted where it was done."""

    read: int
    sent: int
    already_there: int
    quarantined: int
    quarantine_file: str | None


@dataclass(frozen=True, slots=True)
class WriteSummary:
    """Rows read, messages sent, those whose id was there already or has ended, rows put into quarantine.

    With a store, `unplaced` messages are in its table and not at the broker yet, which is the relay's business.
    """

    read: int
    sent: int
    already_there: int
    quarantined: int
    seconds: float
    unplaced: int = 0

    @property
    def rows_per_second(self) -> float:
        """Rows read in a second of wall clock."""
        return self.read / self.seconds if self.seconds else 0.0

    def save(self, path: str) -> None:
        """Write it as JSON, at once or not at all."""
        beside = Path(f"{path}.{id(self)}")
        beside.write_text(json.dumps(asdict(self)))
        beside.replace(path)


def read_summary(path: str) -> WriteSummary:
    """What `save` wrote."""
    return WriteSummary(**json.loads(Path(path).read_text()))


def total(written: Sequence[Written], seconds: float, unplaced: int) -> WriteSummary:
    """Of all tasks. Raises `SparkError` when a row is not accounted for."""
    summary = WriteSummary(
        read=sum(each.read for each in written),
        sent=sum(each.sent for each in written),
        already_there=sum(each.already_there for each in written),
        quarantined=sum(each.quarantined for each in written),
        seconds=seconds,
        unplaced=unplaced,
    )
    if summary.read != summary.sent + summary.already_there + summary.quarantined:
        raise SparkError(f"The counts do not add up, which is a fault of django-delayq; please report it: {summary}")
    return summary
