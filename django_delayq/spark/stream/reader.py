"""The read of a stream. Like write/writer.py, it is loaded by Spark's processes before the site is set up."""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from django_delayq.spark.read.parts import EndedBetween, Part
from django_delayq.spark.read.stream_options import StreamOptions
from django_delayq.spark.site import enter


class StreamReader(DataSourceStreamReader):
    """A `pyspark.sql.datasource.DataSourceStreamReader` of messages that have ended.

    An offset is a transaction's number (xid8): all transactions with a smaller one have been committed or rolled back.
    So a row that is committed late is read late, and is never missed, whatever was read meanwhile.
    """

    def __init__(self, options: StreamOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # the API's name
        return {"xid": self._settled() if self._options.start == "latest" else 0}

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802  # as PySpark has it, too
        return {"xid": self._settled()}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [EndedBetween(start["xid"], end["xid"])] if start["xid"] < end["xid"] else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        alias = enter(self._options.settings, self._options.using)
        from django_delayq.spark.read.task import read_ended  # late: it imports models

        if not isinstance(partition, Part):
            return iter(())
        return read_ended(partition, self._options, self._schema, alias)

    def _settled(self) -> int:
        alias = enter(self._options.settings, self._options.using)
        from django_delayq.spark.read.task import settled  # late: it imports models

        return settled(alias)
