"""What the tests of the pipeline share."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from django_delayq.brokers import get_backend
from django_delayq.spark.write.summary import WriteSummary, read_summary
from tests.docs.site import ROOT

CARRIED, STORED, EMBEDDED = ALIASES = ("carried", "stored", "embedded")
"""Redis without a store; a store on PostgreSQL; a store on SQLite."""

ALONE = "alone"
"""PostgreSQL alone."""

SETTINGS = "tests.spark.settings"

CASES = json.loads((ROOT / "tests/human_time_cases.json").read_text())
"""The cases of human time, which tests/core/test_human_time.py asks without Spark."""

PASSWORD = "of no database, yet nobody's business"
"""What Spark's processes give to databases that ask for none."""

HOUR_MS = 3_600_000


def name_of(days: Sequence[str] | None) -> str | None:
    """Return the name of a calendar of some days."""
    return " ".join(days) if days else None


_days = [rule.get("calendar") for _, rule, *_ in CASES["at"][1:]] + [rule[-1] for _, rule, *_ in CASES["window"][1:]]
CALENDARS = {str(name_of(days)): days for days in [*_days, ["2096-11-23"]] if days}
"""The calendars of the cases, by name, and one of years from now."""


def write(rows: DataFrame, using: str, tmp_path: Path, **options: Any) -> WriteSummary:
    """Send the rows. Gives what the job counted."""
    path = str(tmp_path / "summary.json")
    given = {"using": using, "job": "test", "summaryPath": path, **options}
    rows.write.format("delayq").mode("append").options(**given).save()
    return read_summary(path)


def waiting(using: str) -> int:
    """Return how many messages wait."""
    return sum(each.pending + each.ready for each in get_backend(using).queue.counts().waiting)
