"""A site for the pipeline: private servers, a local Spark of two cores, and rows to send."""

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter

import psutil
from django.db import connections
from django.test.utils import override_settings
from pyspark.sql import DataFrame, SparkSession, functions as f

from benchmarks.server import Server
from benchmarks.settings import delayq_at
from benchmarks.site import DATA
from benchmarks.stored_site import stored_site
from django_delayq.models import ReadyMessage
from django_delayq.spark.session import build_session

CARRIED, STORED = "carried", "stored"
SETTINGS = "benchmarks.spark_settings"
FAR_S = 1_900_000_000
KEY = "bench.row"
"""A key without a handler: nothing is run."""


@dataclass(frozen=True, slots=True)
class SparkSite:
    """The servers, session and rows that the benchmarks of the pipeline share."""

    spark: SparkSession
    server: Server
    using: str
    """The name in DATABASES of the store's database."""

    def empty(self) -> None:
        """Forget every message."""
        with self.server.client() as client:
            client.flushall()
        with connections[self.using].cursor() as cursor:
            cursor.execute("TRUNCATE delayq_ready, delayq_finish, delayq_error")

    def rows(self, count: int) -> DataFrame:
        """Return `count` messages with 100 bytes of data, due years from now. Spark makes them when they are read."""
        data = f.struct(*(f.lit(value).alias(name) for name, value in DATA.items()))
        due_at = f.timestamp_seconds(f.lit(FAR_S) + f.col("id") % 3600)
        id = f.concat(f.lit("message-"), f.col("id").cast("string"))
        return self.spark.range(0, count, 1, 2).select(
            f.lit(KEY).alias("key"), id.alias("id"), data.alias("data"), due_at.alias("due_at")
        )

    def write(self, rows: DataFrame, using: str) -> None:
        """Write rows through the data source to the alias `using`."""
        rows.write.format("delayq").mode("append").options(using=using, job="bench", settings=SETTINGS).save()

    def load(self, **options: str) -> DataFrame:
        """Read rows through the data source."""
        return self.spark.read.format("delayq").options(settings=SETTINGS, **options).load()

    def stored(self) -> int:
        """Return how many rows the ready table has."""
        return ReadyMessage.objects.using(self.using).count()


@contextmanager
def spark_site() -> Iterator[SparkSite]:
    """Yield servers and a session that end with the block."""
    with stored_site() as site:
        place = delayq_at(site.server.url)["default"]
        delayq = {
            CARRIED: {**place, "OPTIONS": {"prefix": CARRIED, "unknown_keys": "allow"}},
            STORED: {
                **place,
                "STORE": {},
                "DATABASE": site.using,
                "OPTIONS": {"prefix": STORED, "unknown_keys": "allow"},
            },
        }
        delayq["default"] = delayq[CARRIED]
        os.environ["DELAYQ_BENCH_SPARK"] = json.dumps({"DELAYQ": delayq, "DATABASES": {site.using: site.database}})
        spark = build_session("benchmarks", master="local[2]", config={"spark.driver.memory": "2g"})
        spark.sparkContext.setLogLevel("ERROR")
        try:
            with override_settings(DELAYQ=delayq):
                yield SparkSite(spark, site.server, site.using)
        finally:
            spark.stop()


def seconds(work: Callable[[], object]) -> float:
    """Do some work, and return the seconds that it took."""
    started = perf_counter()
    work()
    return perf_counter() - started


def peak_bytes(work: Callable[[], object]) -> int:
    """Do some work, and return the most memory in bytes that one Python process of Spark had meanwhile."""
    peak = 0
    over = threading.Event()

    def look() -> None:
        nonlocal peak
        while not over.wait(0.05):
            for process in psutil.Process().children(recursive=True):
                try:
                    if process.name().startswith("python"):
                        peak = max(peak, process.memory_info().rss)
                except psutil.Error:  # it has ended
                    continue

    looker = threading.Thread(target=look)
    looker.start()
    try:
        work()
    finally:
        over.set()
        looker.join()
    return peak
