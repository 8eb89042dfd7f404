"""`python -m tests.spark.human_time_sweep`: due times by Spark against core/human_time.py, some 10,000,000 of them.

Each row has rules of its own, near a change of the clocks of a zone: a third are local times, a third instants, and a
third a time of day some months, days and business days on. Most have a window or two, some a calendar, all a spread.
The other side asks core/human_time.py row by row. Prints how many differ, and exits 1 if any does. ROWS is how many,
SEED what they are drawn by.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, date, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from pyarrow import parquet
from pyspark.sql import Column, DataFrame, SparkSession, functions as f

from django_delayq.core.human_time import At, Window, due_in_window_ms
from django_delayq.spark.jobs.due import Plan, rule_columns, rules_of, with_due
from django_delayq.spark.session import build_session
from django_delayq.support.timestamps import EPOCH, to_epoch_ms
from tests.core.clocks import NAMES, clocks
from tests.spark.support import ALIASES, ALONE, SETTINGS

SPREAD_MS = 1_800_000
AROUND_S = 3 * 86_400
DAY = 1440
WEEKDAYS = ("mon-fri", "mon-sun", "sat,sun", "wed", "fri-mon", "tue,thu,sun")
SHOWN = 10
A_FILE = 100_000


def is_tenth(day: date) -> bool:
    return day.toordinal() * 2_654_435_761 % 1000 < 100


def is_half(day: date) -> bool:
    return day.toordinal() * 2_654_435_761 % 1000 < 500


CALENDARS = {"tenth": is_tenth, "half": is_half}


def main() -> int:
    """Sweep, and return the exit code."""
    rows, seed = int(os.environ.get("ROWS", "10_000_000")), int(os.environ.get("SEED", "1"))
    with tempfile.TemporaryDirectory(prefix="delayq-sweep-") as directory:
        spark = session(Path(directory))
        changes = changes_of(spark)
        wrong = asked = 0
        for name, plan in plans().items():
            path, started = f"{directory}/{name}", time.monotonic()
            drawn = drawn_rows(spark, changes, rows // len(plans()), seed)
            asked_rows = drawn.select(f.concat_ws(":", f.lit(name), "n").alias("id"), "*", *rule_columns(plan))
            with_due(asked_rows, plan, rules_of(plan, None, SETTINGS)).drop("moved").write.parquet(path)
            found_s = time.monotonic() - started
            differing = compared(path, name)
            asked += rows // len(plans())
            wrong += len(differing)
            for line in differing[:SHOWN]:
                sys.stdout.write(f"{line}\n")
            took = f"Spark took {found_s:.0f} s, the other side {time.monotonic() - started - found_s:.0f} s"
            sys.stdout.write(f"{name}: {rows // len(plans())} rows, {len(differing)} differ; {took}\n")
            sys.stdout.flush()
        spark.stop()
    sys.stdout.write(f"{wrong} of {asked} differ\n")
    return 1 if wrong else 0


def session(directory: Path) -> SparkSession:
    """Return a session whose processes have a site with the calendars."""
    memory: dict[str, Any] = {"BROKER": "django_delayq.brokers.memory.MemoryBroker", "STORE": None}
    delayq = dict.fromkeys(("default", *ALIASES, ALONE), memory)
    paths = {name: f"{__spec__.name}.{function.__name__}" for name, function in CALENDARS.items()}
    delayq["default"] = {**memory, "CALENDARS": paths}
    (directory / "site.json").write_text(json.dumps({"DELAYQ": delayq, "DATABASES": {}}))
    os.environ |= {"DJANGO_SETTINGS_MODULE": SETTINGS, "DELAYQ_TEST_SPARK": str(directory / "site.json")}
    spark = build_session(
        "sweep", master="local[2]", config={"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def changes_of(spark: SparkSession) -> DataFrame:
    """Return each change of each zone's clocks, numbered: the zone, the second, and what the clocks show then."""
    with ProcessPoolExecutor() as pool:
        found = [each for changes in pool.map(changes_in, NAMES, chunksize=10) for each in changes]
    numbered = [(number, *each) for number, each in enumerate(found)]
    return spark.createDataFrame(numbered, "change int, zone string, at_s long, local_s long")


def changes_in(name: str) -> list[tuple[str, int, int]]:
    """Return each change of the clocks of a zone: its name, the second, and what they show then."""
    zone = clocks(name)
    return [(name, round(change * 60), round(zone.local(change) * 60)) for change in zone.changes]


def plans() -> dict[str, Plan]:
    """Return the kinds of plans, by name."""
    rest: dict[str, Any] = {"zone": "zone", "window": "window", "calendar": "calendar", "spread_ms": SPREAD_MS}
    counted: dict[str, Any] = {each: each for each in ("time", "months", "days", "business_days")}
    return {
        "local": Plan(due="local", **rest),
        "instant": Plan(after="now", **rest),
        "at": Plan(after="now", **counted, **rest),
    }


def drawn_rows(spark: SparkSession, changes: DataFrame, count: int, seed: int) -> DataFrame:
    """Return rows with rules, each near a change of the clocks."""

    def some(below: int, what: str) -> Column:
        return f.pmod(f.xxhash64("n", f.lit(what), f.lit(seed)), f.lit(below))

    def one_of(values: tuple[str | None, ...], what: str) -> Column:
        return f.array(*map(f.lit, values))[some(len(values), what).cast("int")]

    def minute_near(local_s: Column, what: str) -> Column:
        near = f.pmod(f.floor(local_s / 60) + some(181, f"{what} near") - 90, f.lit(DAY))
        return f.when(some(2, f"{what} is near") == 0, near).otherwise(some(DAY, what))

    def clock(minute: Column) -> Column:
        return f.format_string("%02d:%02d", f.floor(minute / 60).cast("int"), (minute % 60).cast("int"))

    def window(what: str) -> Column:
        start = minute_near(f.col("local_s"), f"{what} start")
        end = f.pmod(start + 1 + some(DAY - 1, f"{what} length"), f.lit(DAY))
        until = f.when((end == 0) & (some(2, f"{what} 24:00") == 0), "24:00").otherwise(clock(end))
        return f.concat(one_of(WEEKDAYS, f"{what} days"), f.lit(" "), clock(start), f.lit("-"), until)

    number = changes.count()
    rows = spark.range(0, count, 1, -(-count // A_FILE)).withColumnRenamed("id", "n")
    rows = rows.withColumn("change", some(number, "change").cast("int")).join(f.broadcast(changes), "change")
    away_us = some((AROUND_S + 7_200) * 1_000_000, "away") - AROUND_S * 1_000_000
    away_us = f.when(some(2, "whole") == 0, away_us).otherwise(f.floor(away_us / 60_000_000) * 60_000_000)
    windows = f.when(some(4, "windows") < 2, window("a")).when(
        some(4, "windows") == 2, f.concat(window("a"), f.lit("; "), window("b"))
    )
    return rows.select(
        "n",
        "zone",
        f.timestamp_micros(f.col("at_s") * 1_000_000 + away_us).alias("now"),
        f.timestamp_micros(f.col("local_s") * 1_000_000 + away_us).cast("timestamp_ntz").alias("local"),
        clock(minute_near(f.col("local_s"), "time")).alias("time"),
        f.when(some(3, "count") == 0, some(3, "months")).otherwise(0).alias("months"),
        f.when(some(3, "count") == 1, some(4, "days")).otherwise(0).alias("days"),
        f.when(some(3, "count") == 2, some(4, "business days")).otherwise(0).alias("business_days"),
        windows.alias("window"),
        one_of((None, *CALENDARS), "calendar").alias("calendar"),
    )


def compared(path: str, name: str) -> list[str]:
    """Return what differs, a line each."""
    with ProcessPoolExecutor() as pool:
        files = sorted(map(str, Path(path).glob("*.parquet")))
        return [line for lines in pool.map(partial(differing_in, name), files) for line in lines]


def differing_in(name: str, path: str) -> list[str]:
    """Return what differs in one file."""
    return list(_differing(FIRST[name], parquet.read_table(path).to_pylist()))


def _differing(first: Callable[[dict[str, Any]], datetime], rows: list[dict[str, Any]]) -> Iterator[str]:
    for row in rows:
        expected = due_ms(first(row), row)
        found = None if row["due_at"] is None else to_epoch_ms(row["due_at"])
        if found != expected:
            yield f"{row}: {found}, and not {expected}"


def due_ms(first: datetime, row: dict[str, Any]) -> int:
    """Return when a row is due that may not be due before `first`."""
    calendar = CALENDARS.get(row["calendar"])
    windows = []
    for text in row["window"].split("; ") if row["window"] else ():
        weekdays, hours = text.split(" ")
        start, end = hours.split("-")
        windows.append(Window(weekdays, start, end, zone=row["zone"], calendar=calendar))
    first_ms = -((first - EPOCH) // timedelta(milliseconds=-1))
    return due_in_window_ms(first_ms, windows or None, SPREAD_MS, row["id"])


def _at(row: dict[str, Any]) -> datetime:
    counts = {each: row[each] for each in ("months", "days", "business_days")}
    calendar = CALENDARS.get(row["calendar"]) if row["business_days"] else None
    return At(time=row["time"], zone=row["zone"], calendar=calendar, **counts).resolve(row["now"])


FIRST: dict[str, Callable[[dict[str, Any]], datetime]] = {
    "local": lambda row: row["local"].replace(tzinfo=ZoneInfo(row["zone"])).astimezone(UTC),
    "instant": lambda row: row["now"],
    "at": _at,
}


if __name__ == "__main__":
    sys.exit(main())
