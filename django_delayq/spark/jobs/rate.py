"""Hold rows to a rate: rows over the rate are due later, in order, and as little later as possible."""

from collections.abc import Iterable, Iterator

from pyspark.sql import Column, DataFrame, Window, functions as f
from pyspark.sql.types import LongType, StructField, StructType

from django_delayq.spark.jobs.due import DUE, MOVED, RATE

_SECOND, _START, _NUMBER = "_second", "_start", "_number"
_STARTS = StructType([StructField(_SECOND, LongType()), StructField(_START, LongType())])


def with_rate(rows: DataFrame, max_per_second: int, id: Column) -> DataFrame:
    """Delay rows so that at most `max_per_second` are due in any second of the clock.

    Rows with the same due time go in the order of their ids. Rows without one stay without.
    """
    rows = rows.withColumn(_SECOND, f.unix_seconds(f.col(DUE)))
    due = rows.where(f.col(_SECOND).isNotNull())
    counts = ((row[0], row[1]) for row in due.groupBy(_SECOND).count().orderBy(_SECOND).toLocalIterator())
    starts = rows.sparkSession.createDataFrame(list(delayed(counts, max_per_second)), _STARTS)
    rows = rows.join(f.broadcast(starts), _SECOND, "left")
    rows = rows.withColumn(_NUMBER, f.row_number().over(Window.partitionBy(_SECOND).orderBy(DUE, id)) - 1)
    slot = f.timestamp_micros((f.floor((f.col(_START) + f.col(_NUMBER)) / max_per_second) * 1_000_000).cast("long"))
    held = f.when(f.col(_START).isNull(), f.col(DUE)).otherwise(f.greatest(f.col(DUE), slot))
    reasons = f.when(held > f.col(DUE), f.concat(MOVED, f.array(f.lit(RATE)))).otherwise(f.col(MOVED))
    return rows.withColumn(MOVED, reasons).withColumn(DUE, held).drop(_SECOND, _START, _NUMBER)


def delayed(counts: Iterable[tuple[int, int]], max_per_second: int) -> Iterator[tuple[int, int]]:
    """Yield (second, place of its first row) for each second whose rows must wait.

    All rows stand in one line, in which each second has `max_per_second` places. `counts` has the number of rows of
    each second, in order.
    """
    free = 0
    for second, count in counts:
        start = max(second * max_per_second, free)
        free = start + count
        if start > second * max_per_second or count > max_per_second:
            yield second, start
