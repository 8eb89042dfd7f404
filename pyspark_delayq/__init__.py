"""Make `format("delayq")` known to PySpark, which looks for packages `pyspark_*` that have a `DefaultSource`."""

from django_delayq.spark.source import DelayqSource as DefaultSource

__all__ = ["DefaultSource"]
