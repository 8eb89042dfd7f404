"""Measure the pipeline on Spark against what a site would write by hand, all on one machine in one run."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime

from pyspark.sql import functions as f

from benchmarks.rates import ROUNDS, Rates
from benchmarks.result import Result, at_least, at_most
from benchmarks.scale import scaled
from benchmarks.site import DATA
from benchmarks.spark_by_hand import send_each, send_many
from benchmarks.spark_site import CARRIED, FAR_S, KEY, STORED, SparkSite, peak_bytes, seconds, spark_site
from django_delayq.brokers.base import BATCH

ROWS = scaled(1_000_000, least=20_000)


def run() -> list[Result]:
    """Return the ratios of rows a second, of the times with and without a filter, and of memory."""
    with spark_site() as site:
        site.write(site.rows(1000), CARRIED)  # Python processes and Java's compiler get warm
        site.write(site.rows(1000), STORED)
        _all(site)
        _near(site)
        return [*_redis(site), *_store(site), *_memory(site)]


def _redis(site: SparkSite) -> list[Result]:
    ours, one_by_one, in_bulk, plain = _in_turn(
        lambda: _fresh(site, lambda: site.write(site.rows(ROWS), CARRIED)),
        lambda: _fresh(site, lambda: site.rows(ROWS).foreachPartition(send_each)),
        lambda: _fresh(site, lambda: site.rows(ROWS).foreachPartition(send_many)),
        lambda: _fresh(site, _send_plainly),
    )
    return [
        _at_least("Spark to Redis / foreachPartition, a send a row", ours, one_by_one, 2.0),
        _at_least("Spark to Redis / foreachPartition with send_delay_messages", ours, in_bulk, 1.2),
        _at_least("Spark to Redis / plain Python with send_delay_messages", ours, plain, 0.7),
    ]


def _store(site: SparkSite) -> list[Result]:
    tenth = ROWS // 10
    by_orm, ours, read, iterated, filtered = _in_turn(
        lambda: _fresh(site, lambda: _bulk_create(site, tenth)) * ROWS / tenth,
        lambda: _fresh(site, lambda: site.write(site.rows(ROWS), STORED)),
        lambda: seconds(lambda: _all(site)),
        lambda: seconds(lambda: _iterate(site)),
        lambda: seconds(lambda: _near(site)),
    )
    kept = Rates(filtered, read)  # a ratio of seconds, unlike the others
    return [
        _at_least("Spark to the store / bulk_create of 1,000", ours, by_orm, 5),
        _at_least("Spark reads a table / the ORM's iterator", read, iterated, 5),
        at_most("a filter that keeps 1 % / all rows", kept.ratio, 0.25, "of the time", kept.rounds),
    ]


def _in_turn(*works: Callable[[], float]) -> list[list[float]]:
    """Return the seconds that each work takes in `ROUNDS` rounds. In the first round Java's compiler gets warm."""
    return [list(taken) for taken in zip(*([work() for work in works] for _ in range(ROUNDS)), strict=True)]


def _at_least(what: str, ours_s: list[float], floor_s: list[float], least: float) -> Result:
    rates = Rates([ROWS / each for each in ours_s], [ROWS / each for each in floor_s])
    return at_least(what, rates.ratio, least, str(rates))


def _memory(site: SparkSite) -> list[Result]:
    few = peak_bytes(lambda: _fresh(site, lambda: site.write(site.rows(ROWS // 10), CARRIED)))
    many = peak_bytes(lambda: _fresh(site, lambda: site.write(site.rows(ROWS), CARRIED)))
    told = f"{many / 2**20:.0f} MiB"
    return [at_most("a task's memory, ten times the rows / rows", many / few, 1.3, "times", told)]


def _fresh(site: SparkSite, work: Callable[[], object]) -> float:
    site.empty()
    return seconds(work)


def _send_plainly() -> None:
    from django_delayq import Send, send_delay_messages

    at = (datetime.fromtimestamp(FAR_S + n % 3600, UTC) for n in range(ROWS))
    send_delay_messages((Send(KEY, DATA, at=each, id=f"message-{n}") for n, each in enumerate(at)), using=CARRIED)


def _bulk_create(site: SparkSite, rows: int) -> None:
    from django_delayq.core.codec import dumps
    from django_delayq.models import ReadyMessage
    from django_delayq.support.timestamps import from_ms

    data, now, due_at = dumps(DATA).decode(), datetime.now(UTC), from_ms(FAR_S * 1000)
    fields = {"alias": STORED, "queue": "default", "key": KEY, "data": data, "failures": 0, "crashes": 0}
    fields |= {"due_at": due_at, "scheduled_at": due_at, "sent_at": now, "at_most_once": False}

    def made() -> Iterator[ReadyMessage]:
        for n in range(rows):
            yield ReadyMessage(message_id=f"message-{n}", error="", worker="", history="[]", **fields)

    ReadyMessage.objects.using(site.using).bulk_create(made(), batch_size=BATCH)


def _all(site: SparkSite) -> None:
    site.load(using=STORED, table="ready").write.format("noop").mode("append").save()


def _near(site: SparkSite) -> None:
    """Read the 1 % of rows that are due first."""
    rows = site.load(using=STORED, table="ready", pushFilters="true")
    near = rows.where(f.col("due_at") < f.timestamp_seconds(f.lit(FAR_S + 36)))
    near.write.format("noop").mode("append").save()


def _iterate(site: SparkSite) -> None:
    from django_delayq.models import ReadyMessage

    for _ in ReadyMessage.objects.using(site.using).iterator(chunk_size=BATCH):
        pass
